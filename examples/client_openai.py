"""The `openai` SDK: a talk of two turns, a question with a tool, and the Responses API.

    pip install openai
    python examples/client_openai.py

What is said after a reply is what the model learns from, so a client has nothing to do but talk. The address and the
key may also come from OPENAI_BASE_URL and OPENAI_API_KEY; on this machine alone no key is needed.
"""

from __future__ import annotations

import os

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def main() -> None:
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:30000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    talk: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is tea?"}]
    first = client.chat.completions.create(model="embedded", messages=talk, max_tokens=32)
    print("tea:", first.choices[0].message.content)

    talk.append({"role": "assistant", "content": first.choices[0].message.content})
    talk.append({"role": "user", "content": "Please answer in under ten words."})  # this is what it is trained on
    print("shorter: ", end="")
    for chunk in client.chat.completions.create(model="embedded", messages=talk, max_tokens=32, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)

    asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    answer = client.chat.completions.create(model="embedded", messages=asked, tools=[WEATHER], max_tokens=32)
    print("\ntool:", answer.choices[0].message.tool_calls or answer.choices[0].message.content)

    response = client.responses.create(model="embedded", input="Name a river.", max_output_tokens=16)
    print("responses:", response.output_text)


if __name__ == "__main__":
    main()
