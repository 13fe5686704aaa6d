"""The connection from an agent program to the gateway: its calls are sent with its episode's key and session.

The program receives an address inside its sandbox and needs no key, header or session name: these are added here, and
the program's own values for them are dropped. Only model calls pass: a program with access to the full API could pay
itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

LARGEST = 64 << 20
"""maximum bytes in one call"""
CALLS = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/messages"})
"""the paths for requesting a reply"""
_COUNT = "/v1/messages/count_tokens"
_MODELS = re.compile(r"/v1/models(/[A-Za-z0-9_][A-Za-z0-9._@-]*)?")
"""no segment starts with a dot and no character is escaped, so a client cannot turn the path into another"""
_PASSED_ON = ("content-type", "accept", "user-agent", "anthropic-version", "anthropic-beta", "x-turn-type")
_PASSED_BACK = ("content-type", "retry-after", "x-request-id", "request-id")
_OURS = "x-openclaw-rl-"


class GatewayForwarder:
    """Forwards one episode's calls. ``calls`` counts the calls that request a reply.

    ``spent`` is set when the program requests one reply more than its limit. ``outage`` describes the gateway's
    failure, "" if there is none.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        *,
        root: str,
        headers: Mapping[str, str],
        max_calls: int,
        temperature: float | None,
    ) -> None:
        """``root`` is the gateway's address without /v1; ``headers`` are sent with each call; ``temperature`` None
        leaves it to the program.
        """
        self._client = client
        self._root = root
        self._headers = dict(headers)
        self._max_calls = max_calls
        self._temperature = temperature
        self.calls = 0
        self.spent = asyncio.Event()
        self.outage = ""

    def app(self) -> Starlette:
        """Return the application that listens in the sandbox."""
        return Starlette(routes=[Route("/{path:path}", self._pass_on, methods=["GET", "POST"])])

    async def _pass_on(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode("latin-1")  # undecoded: decoding would turn %2e%2e into dots
        if not _is_open(request.method, path):
            return _refusal(404, f"{request.method} {path[:200]} is not open to an agent program")
        asks = path in CALLS
        if asks and self.calls >= self._max_calls:
            self.spent.set()
            return _refusal(429, f"the {self._max_calls} calls of this episode are used up")
        body = await _body(request)
        if body is None:
            return _refusal(413, f"a call may have {LARGEST} bytes")
        self.calls += asks
        return await self._answer(request, path, self._sampled(body) if asks else body)

    def _sampled(self, body: bytes) -> bytes:
        """Set the episode's temperature in the call; leave invalid JSON for the gateway to refuse."""
        if self._temperature is None:
            return body
        try:
            fields = json.loads(body)
            changed = {**fields, "temperature": self._temperature} if isinstance(fields, dict) else None
            return body if changed is None else json.dumps(changed).encode()
        except (ValueError, RecursionError):
            return body

    async def _answer(self, request: Request, path: str, body: bytes) -> Response:
        forwarded = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        call = self._client.build_request(
            request.method,
            f"{self._root}{path}",
            content=body,
            headers={**forwarded, "accept-encoding": "identity", **self._headers},
        )
        try:
            answer = await _unless_gone(request, self._client, call)
        except httpx2.TransportError as error:
            self.outage = f"the gateway cannot be reached: {type(error).__name__}: {error}"
            return _refusal(503, "the gateway cannot be reached")
        if answer is None:
            return Response(status_code=499)
        if answer.status_code >= 500:
            self.outage = f"the gateway answered with status {answer.status_code}"
        back = {name: value for name, value in answer.headers.items() if name in _PASSED_BACK or name.startswith(_OURS)}
        return StreamingResponse(self._streamed(answer), status_code=answer.status_code, headers=back)

    async def _streamed(self, answer: httpx2.Response) -> AsyncIterator[bytes]:
        try:
            async for part in answer.aiter_raw():
                yield part
        except httpx2.TransportError as error:
            self.outage = f"a reply of the gateway broke off: {type(error).__name__}: {error}"
            raise
        finally:
            await answer.aclose()


def _is_open(method: str, path: str) -> bool:
    """Return True if an agent program may send this request; ``path`` is the raw path."""
    if method == "POST":
        return path in CALLS or path == _COUNT
    return method == "GET" and _MODELS.fullmatch(path) is not None


async def _body(request: Request) -> bytes | None:
    """Return the body; None if it is too large."""
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            return None
    return b"".join(parts)


async def _unless_gone(request: Request, client: httpx2.AsyncClient, call: httpx2.Request) -> httpx2.Response | None:
    """Return the answer once it begins; cancel the call and return None if the program disconnects first."""
    answering = asyncio.ensure_future(client.send(call, stream=True))
    leaving = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await answering if answering.done() else None
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


def _refusal(status: int, why: str) -> Response:
    return JSONResponse({"error": {"message": why, "type": "invalid_request_error"}}, status_code=status)
