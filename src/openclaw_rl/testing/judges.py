"""A judge with a given answer, and an endpoint for the LLM judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx2

from openclaw_rl.errors import OpenClawError
from openclaw_rl.ports import Case
from openclaw_rl.types import Hint, Verdict


class FakeJudge:
    """A `Judge` with one score and its hints for every case, or a function of the case; ``cases`` are those it saw.

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
    """One vote as the LLM judge asks for it.

    >>> json.loads(vote_json(-1, "Be brief.", "rule"))["score"]
    -1
    """
    return json.dumps({"reason": "r", "score": score, "hint": hint, "kind": kind})


def chat_answer(text: str, *, tokens: int = 10) -> httpx2.Response:
    """What a chat completions endpoint sends back for a reply of ``text``."""
    return httpx2.Response(200, json={"choices": [{"message": {"content": text}}], "usage": {"total_tokens": tokens}})


class JudgeEndpoint:
    """A chat completions endpoint that gives each of ``answers`` once, in order, and then the last one for ever.

    An answer is the model's text, an HTTP status, an error to raise, or a response. Give it to an HTTP client as its
    transport, ``httpx2.MockTransport(endpoint)``, or put it on a port with ``listening(endpoint.app)``.

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
        """The same as an ASGI app.

        >>> from openclaw_rl.testing import listening
        >>> with listening(JudgeEndpoint(vote_json(1)).app) as url:
        ...     httpx2.post(f"{url}/v1/chat/completions", json={"model": "m"}).status_code
        200
        """
        assert scope["type"] == "http", "listening() starts no lifespan that this app needs"
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        answer = self(httpx2.Request("POST", "http://judge", content=body, headers=scope["headers"]))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content})
