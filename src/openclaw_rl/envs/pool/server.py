"""A pool behind HTTP, so that environments can run on other machines.

POST   /v1/leases                 {task, seed, request}
POST   /v1/leases/{id}/step       {reply, request}
POST   /v1/leases/{id}/outcome    {request}
POST   /v1/leases/{id}/heartbeat
DELETE /v1/leases/{id}
GET    /v1/tasks   /v1/status     and, without a key, /healthz

Without a key the pool answers loopback names only and refuses other sites' pages: a step may be a shell command.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openclaw_rl.envs.pool.leases import EnvPool, reap_for_ever
from openclaw_rl.errors import EnvFailed, NotAllowed, OpenClawError, RequestError, TaskRefused, TooMany
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt
from openclaw_rl.web import parse_json, refuse_foreign_page

MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)
PROMPT: TypeAdapter[Prompt] = TypeAdapter(Prompt)
OBSERVATION: TypeAdapter[Observation] = TypeAdapter(Observation)
LARGEST = 64 << 20
"""maximum bytes in a body"""
_DEPTH, _VALUES = 64, 1_000_000
"""a body's maximum nesting depth, and its maximum number of values"""
GONE = 410
REFUSED = "task_refused"
"""error code when a task is refused because its audit does not admit it"""
LEFT = 499
"""status for a caller that disconnected before its request was complete; it is never received"""

Handle = Callable[[Request], Awaitable[Response]]


def pool_app(pool: EnvPool, *, key: str | None) -> Starlette:
    """Return the application. It runs the pool's reaper; at the end every lease is closed."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        reaping = asyncio.create_task(reap_for_ever(pool))
        try:
            yield
        finally:
            reaping.cancel()
            await asyncio.gather(reaping, return_exceptions=True)
            await pool.close()

    handlers = _Handlers(pool)

    def route(path: str, handle: Handle, method: str) -> Route:
        return Route(path, _guarded(handle, key), methods=[method])

    async def alive(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    routes = [
        route("/v1/leases", handlers.lease, "POST"),
        route("/v1/leases/{id}/step", handlers.step, "POST"),
        route("/v1/leases/{id}/outcome", handlers.outcome, "POST"),
        route("/v1/leases/{id}/heartbeat", handlers.heartbeat, "POST"),
        route("/v1/leases/{id}", handlers.release, "DELETE"),
        route("/v1/tasks", handlers.tasks, "GET"),
        route("/v1/status", handlers.status, "GET"),
        Route("/healthz", alive),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


class _Handlers:
    def __init__(self, pool: EnvPool) -> None:
        self._pool = pool

    async def lease(self, request: Request) -> Response:
        body = await _body(request)
        lease = await self._pool.lease(
            _field(body, "task", str), seed=_field(body, "seed", int), request=_field(body, "request", str)
        )
        plain = {"lease": lease.id, "ttl": lease.ttl, "prompt": PROMPT.dump_python(lease.prompt, mode="json")}
        return JSONResponse(plain, status_code=201)

    async def step(self, request: Request) -> Response:
        body = await _body(request)
        reply = MESSAGE.validate_python(_field(body, "reply", dict))
        observation = await self._pool.step(request.path_params["id"], reply, request=_field(body, "request", str))
        return JSONResponse(OBSERVATION.dump_python(observation, mode="json"))

    async def outcome(self, request: Request) -> Response:
        body = await _body(request)
        worth = await self._pool.outcome(request.path_params["id"], request=_field(body, "request", str))
        return JSONResponse({"outcome": worth})

    async def heartbeat(self, request: Request) -> Response:
        await self._pool.heartbeat(request.path_params["id"])
        return JSONResponse({})

    async def release(self, request: Request) -> Response:
        await self._pool.release(request.path_params["id"])
        return JSONResponse({})

    async def tasks(self, _: Request) -> Response:
        return JSONResponse({"tasks": list(self._pool.tasks()), "name": self._pool.name})

    async def status(self, _: Request) -> Response:
        return JSONResponse(await self._pool.status())


async def _body(request: Request) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise RequestError(f"the body is larger than {LARGEST} bytes", status=413)
    return parse_json(body, depth=_DEPTH, values=_VALUES)


def _field(body: dict[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise RequestError(f"{name}: is missing, or no {kind.__name__}", field=name)
    return value


def _guarded(handle: Handle, key: str | None) -> Handle:
    """Return the handler behind the key, or without one behind the guard against pages; failures have one format."""

    async def guarded(request: Request) -> Response:
        try:
            _admit(request, key)
            return await handle(request)
        except TooMany as error:
            return _refusal(429, error, {"retry-after": str(max(1, math.ceil(error.retry_after)))})
        except NotAllowed as error:
            return _refusal(401, error, {"www-authenticate": "Bearer"})
        except RequestError as error:
            return _refusal(error.status, error)
        except ValidationError as error:
            return _refusal(400, RequestError(f"reply: {error.error_count()} fields are wrong"))
        except EnvFailed as error:
            return _refusal(GONE, error)
        except ClientDisconnect:
            return Response(status_code=LEFT)

    return guarded


def _admit(request: Request, key: str | None) -> None:
    if key is None:
        refuse_foreign_page(request.headers, ())
        _refuse_form(request)
        return
    presented = request.headers.get("authorization", "").partition(" ")[2].strip()
    if not hmac.compare_digest(key.encode(), presented.encode("utf-8", "replace")):
        raise NotAllowed("this key is not known" if presented else "a key is needed")


def _refuse_form(request: Request) -> None:
    """Refuse the content types that a browser sends from any page without a preflight request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        raise RequestError("the body is not application/json", status=415, remedy="send content-type: application/json")


def _refusal(status: int, error: OpenClawError, headers: dict[str, str] | None = None) -> Response:
    refused = {"code": REFUSED} if isinstance(error, TaskRefused) else {}
    return JSONResponse({"error": {"message": str(error), **refused}}, status_code=status, headers=headers)
