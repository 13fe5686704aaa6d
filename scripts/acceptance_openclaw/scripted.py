"""What is said in the acceptance run, and a generate function that makes the tool calls certain.

The embedded model is too small to call tools by itself, and once it has seen calls it repeats them without end. So the
replies that call a tool, and those after them, are *given*: their text is written here, their tokens are the model's
own, and their log-probs are what the served version gives to these tokens (marked ``scored``, as an import is). Every
other reply, among them each that is corrected and trained, is the model's own, only kept short.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from openclaw_rl.ports import Delta, Policy, Stream
from openclaw_rl.types import Completion, Message, Prompt, Sampling

REPLY_TOKENS = 40
"""most tokens of a reply to a person"""
SIDE_TOKENS = 16
"""most tokens of a recap or a summary: nobody reads them here"""

TOO_LONG = "That is too long. Please answer in under 30 words."
_INTERNAL = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call and a word that its result must hold."""

    tool: str
    arguments: Mapping[str, Any]
    shows: str

    @property
    def text(self) -> str:
        return f"<tool_call>\n{json.dumps({'name': self.tool, 'arguments': dict(self.arguments)})}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a person, the tool calls that come before the reply, and the reply where it is given."""

    text: str
    calls: tuple[Call, ...] = ()
    words: str | None = None

    def __post_init__(self) -> None:
        assert self.words or not self.calls, "after a tool call the model would go on calling"


WRITE = Call("write", {"path": "notes.txt", "content": "buy milk"}, "notes.txt")
READ = Call("read", {"path": "notes.txt"}, "buy milk")
COUNT = Call("exec", {"command": "wc -c < notes.txt"}, "8")
ADD = Call("exec", {"command": "expr 19 + 23"}, "42")

FIRST: tuple[Said, ...] = (
    Said("What is tea?"),
    Said(TOO_LONG),
    Said("What is coffee?"),
    Said(TOO_LONG),
    Said("Write 'buy milk' into notes.txt, read it back and count its letters.", (WRITE, READ, COUNT), "It has 8."),
    Said("Good. That is all for the list.", words="You are welcome."),
)
AFTER_COMPACTION: tuple[Said, ...] = (Said("What is milk?"), Said("Thank you for the milk."))
SECOND: tuple[Said, ...] = (
    Said("What is a comet?"),
    Said(TOO_LONG),
    Said("What is rain?"),
    Said(TOO_LONG),
    Said("Add 19 and 23 with a command.", (ADD,), "That makes 42."),
    Said("Good. That is all for the sum.", words="You are welcome, any time."),
)
AFTER_RESET: tuple[Said, ...] = (Said("What is a comet?"), Said("Thank you for the comet."))
THIRD: tuple[Said, ...] = (Said("What is a river?"), Said(TOO_LONG), Said("Thank you for the river."))

_EVERYTHING = (*FIRST, *AFTER_COMPACTION, *SECOND, *AFTER_RESET, *THIRD)
_GIVEN = {said.text: said for said in _EVERYTHING if said.words}


def given(messages: Sequence[Message]) -> str | None:
    """What the reply must be, None where the model speaks for itself."""
    at = next((n for n in range(len(messages) - 1, -1, -1) if _human(messages[n])), None)
    said = next((said for text, said in _GIVEN.items() if at is not None and text in messages[at].content), None)
    if said is None:
        return None
    made = sum(message.role == "tool" for message in messages[at:])
    return said.calls[made].text if made < len(said.calls) else said.words


def _human(message: Message) -> bool:
    return message.role == "user" and not message.content.startswith(_INTERNAL)


async def generate(policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream:
    """The model's own reply, short; or the given one, with the tokens and log-probs of the served version."""
    text = given(prompt.messages) if prompt.tools else None
    if text is None:
        limit = REPLY_TOKENS if prompt.tools else SIDE_TOKENS
        short = replace(sampling, max_tokens=min(sampling.max_tokens or limit, limit))
        async with aclosing(policy.generate(prompt, short, version=version)) as stream:  # type: ignore[type-var]
            async for item in stream:
                yield item
        return
    number = policy.live if version is None else version
    ids, reply = await policy.encode(prompt), await policy.tokenize(text)
    scores = await policy.score(ids, reply, version=number, temperature=sampling.temperature or 1.0)
    yield Delta(text=text)
    yield Completion(
        reply=Message(role="assistant", content=text),
        prompt_tokens=ids,
        reply_tokens=reply,
        logprobs=scores.logprobs,
        sampling=sampling,
        finish="stop",
        version=number,
        scored=True,
    )
