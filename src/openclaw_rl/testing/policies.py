"""Scripted policy and judges that fail on demand."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import httpx2

from openclaw_rl.errors import BackendDown, ContextOverflow, OpenClawError
from openclaw_rl.ports import Ability, Alternative, Case, Delta, Piece, Scores, Stream
from openclaw_rl.types import Completion, Hint, Message, Prompt, Sampling, Tokens, Verdict, Version

END = 1_114_112
"""token that ends a turn; every other token is one character"""


class ScriptedPolicy:
    """A `Policy` with a fixed reply: one character per token, log-prob -1/(position + 2), live version 3.

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
        """every request so far, with its version"""
        self.loaded: list[int] = []
        self.down = 0
        """number of next requests that fail as if the backend were down"""
        self.stall_after: int | None = None
        """number of tokens after which a stream stalls forever"""
        self.break_after: int | None = None
        """number of tokens after which the backend fails"""
        self.breaks = 10**6
        """number of replies that fail so"""
        self.pause_after: int | None = None
        """number of tokens after which a stream waits for `go_on`"""
        self.began = threading.Event()
        """set by the first request"""
        self.closed = threading.Event()
        """set when a stream ends, finished or not"""
        self._go_on = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live = 3

    @property
    def live(self) -> int:
        return self._live

    def go_on(self) -> None:
        """End the pause, from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._go_on.set)

    async def start(self) -> None:
        """Do nothing: the policy is always ready."""

    async def stop(self) -> None:
        """Do nothing: the policy holds no resources."""

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
        visible = sampled[: -len(stop)] if stop else sampled
        for at, char in enumerate(sampled):
            await self._trouble(at)
            yield Delta(text=char if at < len(visible) else "", pieces=(_piece(char, at, sampling.top_logprobs),))
        ids = [ord(char) for char in sampled] + ([] if cut or stop else [END])
        yield Completion(
            reply=Message(role="assistant", content=visible),
            prompt_tokens=prompt_ids,
            reply_tokens=tuple(ids),
            logprobs=tuple(-1 / (at + 2) for at in range(len(ids))),
            sampling=sampling,
            finish="length" if cut else "stop",
            version=version,
        )

    async def _trouble(self, at: int) -> None:
        """Stall, pause or fail before token ``at``, as the test has set."""
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
    alternatives = tuple(Alternative(token=97 + i, text=chr(97 + i), logprob=-2.0) for i in range(top))
    return Piece(token=ord(char), text=char, logprob=-1 / (at + 2), top=alternatives)


# A judge with a fixed answer, and an endpoint for the LLM judge.


class FakeJudge:
    """A `Judge` with one score and its hints for every case, or a function of the case; ``cases`` records its input.

    An error in place of a score is raised: ``FakeJudge(JudgeUnavailable("down"))``.

    >>> import asyncio
    >>> from openclaw_rl.testing import make_case
    >>> verdict = asyncio.run(FakeJudge(-1.0, "Be brief, please.").judge(make_case("Too long!")))
    >>> verdict.score, verdict.rules
    (-1.0, ('Be brief, please.',))
    """

    name = "fake"

    def __init__(self, score: float | OpenClawError | Callable[[Case], float | None] | None = 1.0, *hints: str) -> None:
        self.score = score
        self.hints = tuple(Hint(text=text) for text in hints)
        self.cases: list[Case] = []

    async def judge(self, case: Case) -> Verdict:
        self.cases.append(case)
        if isinstance(self.score, OpenClawError):
            raise self.score
        score = self.score(case) if callable(self.score) else self.score
        return Verdict(turn=case.turn.id, score=score, source="judge", hints=self.hints, judge=self.name)


def vote_json(score: int, hint: str | None = None, kind: str | None = None) -> str:
    """Return one vote in the LLM judge's format.

    >>> json.loads(vote_json(-1, "Be brief.", "rule"))["score"]
    -1
    """
    return json.dumps({"reason": "r", "score": score, "hint": hint, "kind": kind})


def chat_answer(text: str, *, tokens: int = 10) -> httpx2.Response:
    """Return a chat completions response with the reply ``text``."""
    return httpx2.Response(200, json={"choices": [{"message": {"content": text}}], "usage": {"total_tokens": tokens}})


class JudgeEndpoint:
    """A chat completions endpoint that returns each of ``answers`` once, in order, and then repeats the last.

    An answer is the model's text, an HTTP status, an error to raise, or a response. Use it as an HTTP client's
    transport, ``httpx2.MockTransport(endpoint)``, or serve it on a port with ``listening(endpoint.app)``.

    >>> endpoint = JudgeEndpoint(503, vote_json(1))
    >>> with httpx2.Client(transport=httpx2.MockTransport(endpoint)) as client:
    ...     [client.post("http://judge/v1/chat/completions", json={"model": "m"}).status_code for _ in range(3)]
    [503, 200, 200]
    >>> endpoint.requests[0]
    {'model': 'm'}
    """

    def __init__(self, *answers: str | int | Exception | httpx2.Response) -> None:
        self.answers: Sequence[str | int | Exception | httpx2.Response] = answers or (vote_json(1),)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[httpx2.Headers] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(json.loads(request.content))
        self.headers.append(request.headers)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return httpx2.Response(answer, json={"error": {"message": "no"}})
        return chat_answer(answer) if isinstance(answer, str) else answer

    async def app(self, scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """Serve the same answers as an ASGI app.

        >>> from openclaw_rl.testing import listening
        >>> with listening(JudgeEndpoint(vote_json(1)).app) as url:
        ...     httpx2.post(f"{url}/v1/chat/completions", json={"model": "m"}).status_code
        200
        """
        assert scope["type"] == "http", "listening() starts no lifespan that this app needs"
        body, is_open = b"", True
        while is_open:
            message = await receive()
            body, is_open = body + message.get("body", b""), message.get("more_body", False)
        answer = self(httpx2.Request("POST", "http://judge", content=body, headers=scope["headers"]))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content})
