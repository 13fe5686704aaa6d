"""The `anthropic` SDK: count tokens, ask, and go on with a streamed answer.

    pip install anthropic
    python examples/client_anthropic.py

The address and the key may also come from ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY.
"""

from __future__ import annotations

import os

from anthropic import Anthropic
from anthropic.types import MessageParam


def main() -> None:
    client = Anthropic(
        base_url=os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:30000"),
        api_key=os.environ.get("ANTHROPIC_API_KEY", "none"),
    )
    talk: list[MessageParam] = [{"role": "user", "content": "What is tea?"}]
    print("tokens:", client.messages.count_tokens(model="embedded", messages=talk).input_tokens)
    first = client.messages.create(model="embedded", max_tokens=32, messages=talk)
    said = "".join(block.text for block in first.content if block.type == "text")
    print("tea:", said)

    talk.append({"role": "assistant", "content": said})
    talk.append({"role": "user", "content": "Please answer in under ten words."})
    print("shorter: ", end="")
    with client.messages.stream(model="embedded", max_tokens=32, messages=talk) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
