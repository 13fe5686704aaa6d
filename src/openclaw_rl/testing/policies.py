"""A policy that replies as a script says, and fails on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from openclaw_rl.errors import BackendDown, ContextOverflow
from openclaw_rl.ports import Ability, Alternative, Delta, Piece, Scores, Stream
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Tokens, Version

END = 1_114_112
"""the token that ends a turn; every other token is one character"""


class ScriptedPolicy:
    """A `Policy` with a given reply: one character a token, log-prob -1/(position + 2), live version 3.

    >>> import asyncio
    >>> from openclaw_rl.testing import make_prompt
    >>> from openclaw_rl.types import Sampling
    >>> async def reply():
    ...     policy = ScriptedPolicy("Hi!")
    ...     *deltas, completion = [item async for item in policy.generate(make_prompt("hello"), Sampling())]
    ...     return [delta.text for delta in deltas], completion.version
    >>> asyncio.run(reply())
    (['H', 'i', '!'], 3)
    """

    base = "scripted"
    context = 100_000

    def __init__(self, reply: str | Callable[[Prompt], str] = "Hello there.", *, tool_format: str = "hermes") -> None:
        self.name = "toy"
        self.tool_format = tool_format
        self.abilities: frozenset[Ability] = frozenset({"tool_choice", "json_schema"})
        self.reply = reply
        self.requests: list[tuple[Prompt, Sampling, int | None]] = []
        """every request so far, with the version it named"""
        self.loaded: list[int] = []
        self.down = 0
        """so many requests find the backend down"""
        self.stall_after: int | None = None
        """after so many tokens, no more come, for ever"""
        self.break_after: int | None = None
        """after so many tokens, the backend fails"""
        self.breaks = 10**6
        """so many replies do"""
        self.pause_after: int | None = None
        """after so many tokens, it waits for `go_on`"""
        self.began = threading.Event()
        """set when the first request comes"""
        self.closed = threading.Event()
        """set when a stream is over, finished or not"""
        self._go_on = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live = 3

    @property
    def live(self) -> int:
        return self._live

    def go_on(self) -> None:
        """End the pause; from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._go_on.set)

    async def start(self) -> None:
        """Nothing to make ready."""

    async def stop(self) -> None:
        """Nothing to give back."""

    async def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        self.requests.append((prompt, sampling, version))
        self._loop = asyncio.get_running_loop()
        self.began.set()
        if self.down > 0:
            self.down -= 1
            raise BackendDown("the engine restarts", retry_after=0.001)
        number = self._live if version is None else version
        text = self.reply if isinstance(self.reply, str) else self.reply(prompt)
        prompt_ids = await self.encode(prompt)
        if len(prompt_ids) > self.context:
            raise ContextOverflow(limit=self.context, asked=len(prompt_ids))
        try:
            async for item in self._stream(text, prompt_ids, sampling, number):
                yield item
        finally:
            self.closed.set()

    async def _stream(self, text: str, prompt_ids: Tokens, sampling: Sampling, version: int) -> Stream:
        cut = sampling.max_tokens is not None and sampling.max_tokens <= len(text)
        stop = next((stop for stop in sampling.stop if stop in text), None)
        sampled = text[: sampling.max_tokens] if cut else text
        if stop:
            sampled = text[: text.index(stop) + len(stop)]
        shown = sampled[: -len(stop)] if stop else sampled
        for at, char in enumerate(sampled):
            await self._trouble(at)
            yield Delta(text=char if at < len(shown) else "", pieces=(_piece(char, at, sampling.top_logprobs),))
        ids = [ord(char) for char in sampled] + ([] if cut or stop else [END])
        yield Completion(
            reply=Message(role="assistant", content=shown),
            prompt_tokens=prompt_ids,
            reply_tokens=tuple(ids),
            logprobs=tuple(-1 / (at + 2) for at in range(len(ids))),
            sampling=sampling,
            finish="length" if cut else "stop",
            version=version,
        )

    async def _trouble(self, at: int) -> None:
        """What the test wants to happen before token ``at``."""
        if at == self.stall_after:
            await asyncio.Event().wait()
        if at == self.pause_after:
            await self._go_on.wait()
        if at == self.break_after and self.breaks > 0:
            self.breaks -= 1
            raise BackendDown("the engine died")

    async def encode(self, prompt: Prompt) -> Tokens:
        text = "".join(f"{message.role}{message.content}" for message in prompt.messages)
        return tuple(ord(char) for char in text + prompt.opening)

    async def tokenize(self, text: str) -> Tokens:
        return (*map(ord, text), END)

    async def decode(self, tokens: Tokens) -> str:
        return "".join(chr(token) for token in tokens if token < END)

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        return Scores(
            logprobs=tuple(-1.0 for _ in reply),
            top_tokens=tuple(tuple(range(97, 97 + top_k)) for _ in reply),
            top_logprobs=tuple((-2.0,) * top_k for _ in reply),
        )

    async def load(self, version: Version) -> None:
        self.loaded.append(version.number)
        self._live = version.number


def _piece(char: str, at: int, top: int) -> Piece:
    others = tuple(Alternative(token=97 + i, text=chr(97 + i), logprob=-2.0) for i in range(top))
    return Piece(token=ord(char), text=char, logprob=-1 / (at + 2), top=others)
