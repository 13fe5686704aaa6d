"""The page as an ASGI app: an address for each view and (/do) each action, our own scripts and styles, and the door."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from openclaw_rl.errors import NotAllowed, NotInLedger, OpenClawError, RequestError
from openclaw_rl.page.actions import Act, Actions, OpenApi, OpenLedger, read_json
from openclaw_rl.page.door import COOKIE, HEADERS, LASTS, SEARCH_HEADERS, Door, Person, refuse_foreign_act
from openclaw_rl.page.drawing import Drawing
from openclaw_rl.page.html import VIEWS, Html, PageContext, failure_page, login_page, page
from openclaw_rl.store import LedgerReader
from openclaw_rl.views import learning
from openclaw_rl.views.status import EVERY, LiveFigures

log = logging.getLogger(__name__)

TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

Handle: TypeAlias = "Callable[[Request], Awaitable[Response]]"
Alarms: TypeAlias = "Callable[[LedgerReader], list[str]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The page's dependencies: the ledger to read, the API to call, the door, and the run's alarms."""

    ledger: OpenLedger
    api: OpenApi
    door: Door
    alarms: Alarms
    live: LiveFigures = field(default_factory=LiveFigures)


def build_site(site: Site) -> Starlette:
    """Build the app."""
    views = [Route(f"/{name}", _guarded(_view(site, name))) for name, _ in VIEWS]
    acts = [
        Route(path, _guarded(_acting(site, act)), methods=["POST"])
        for path, act in Actions(site.ledger, site.api).by_path.items()
    ]
    return Starlette(
        routes=[
            Route("/", _guarded(_home)),
            *views,
            *acts,
            Route("/export", _guarded(_export(site))),
            Route("/screen", _guarded(_screen(site))),
            Route("/do/login", _guarded(_log_in(site.door)), methods=["POST"]),
            Route("/do/logout", _guarded(_log_out(site.door)), methods=["POST"]),
            Route("/static/{name}", _guarded(_static)),
            Route("/{rest:path}", _guarded(_nowhere)),
        ],
        lifespan=_looking(site),
    )


def _looking(site: Site) -> Callable[[Starlette], Any]:
    """Sample serving while the page runs, so that its curves have points before they are opened."""

    def look() -> None:
        with suppress(OpenClawError), site.ledger() as ledger:  # there may be no ledger yet
            site.live.look(ledger)

    async def keep_looking() -> None:
        while True:
            await asyncio.to_thread(look)
            await asyncio.sleep(EVERY)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(keep_looking())
        yield
        task.cancel()

    return lifespan


# --- views ---


def _view(site: Site, name: str) -> Handle:
    async def handle(request: Request) -> Response:
        person = site.door.person(request)
        if person is None:
            return HTMLResponse(login_page(), status_code=401)
        drawn = await asyncio.to_thread(_drawn, site, person, name, request)
        return HTMLResponse(drawn, headers=SEARCH_HEADERS if name == "sessions" else None)

    return handle


def _drawn(site: Site, person: Person, name: str, request: Request) -> Html:
    with site.ledger() as ledger:
        context = PageContext(
            person=person,
            progress=learning.progress(ledger),
            alarms=site.alarms(ledger) if person.admin else [],
            login=not site.door.open,
        )
        site.live.look(ledger)
        drawing = Drawing(ledger, person, request.query_params, list(context.alarms), site.live.curves())
        return page(context, name, drawing.draw(name))


def _export(site: Site) -> Handle:
    async def handle(request: Request) -> Response:
        person = site.door.person(request)
        if person is None:
            return HTMLResponse(login_page(), status_code=401)
        written = await asyncio.to_thread(_exported, site, person, request)
        headers = {"content-disposition": 'attachment; filename="session.jsonl"'}
        return Response(written, media_type="application/jsonl", headers=headers)

    return handle


def _screen(site: Site) -> Handle:
    async def handle(request: Request) -> Response:
        person = site.door.person(request)
        if person is None:
            raise NotAllowed("you are not logged in", remedy="load the page again")

        def read() -> tuple[str, bytes]:
            with site.ledger() as ledger:
                return Drawing(ledger, person, request.query_params).screen()

        kind, content = await asyncio.to_thread(read)
        return Response(content, media_type=kind, headers={"content-security-policy": "default-src 'none'; sandbox"})

    return handle


def _exported(site: Site, person: Person, request: Request) -> str:
    with site.ledger() as ledger:
        return Drawing(ledger, person, request.query_params).export()


# --- actions ---


def _acting(site: Site, act: Act) -> Handle:
    async def handle(request: Request) -> Response:
        refuse_foreign_act(request.headers)
        person = site.door.person(request)
        if person is None:
            raise NotAllowed("you are not logged in", remedy="load the page again")
        return await act(request, person, await read_json(request))

    return handle


def _log_in(door: Door) -> Handle:
    async def handle(request: Request) -> Response:
        refuse_foreign_act(request.headers)
        body = await read_json(request)
        response = JSONResponse({"said": "welcome"})
        token = door.log_in(str(body.get("key", "")).strip(), address=request.client.host if request.client else "")
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, token, max_age=int(LASTS), httponly=True, samesite="strict", secure=secure)
        return response

    return handle


def _log_out(door: Door) -> Handle:
    async def handle(request: Request) -> Response:
        refuse_foreign_act(request.headers)
        door.log_out(request.cookies.get(COOKIE, ""))
        response = JSONResponse({"said": "bye"})
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    return handle


# --- other addresses ---


async def _home(_: Request) -> Response:
    return RedirectResponse("/talk", status_code=303)


async def _nowhere(_: Request) -> Response:
    return HTMLResponse(failure_page("There is nothing here", "No view has this address."), status_code=404)


async def _static(request: Request) -> Response:
    file = files("openclaw_rl.page").joinpath("static", request.path_params["name"])
    suffix = "." + request.path_params["name"].rpartition(".")[2]
    if suffix not in TYPES or not file.is_file():
        return await _nowhere(request)
    return Response(file.read_bytes(), media_type=TYPES[suffix], headers={"cache-control": "no-cache"})


def _guarded(handle: Handle) -> Handle:
    """Add the door's headers to every response; turn an error into a response with its remedy."""

    async def guarded(request: Request) -> Response:
        try:
            response = await handle(request)
        except OpenClawError as error:
            response = _failed(request, error)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return guarded


def _failed(request: Request, error: OpenClawError) -> Response:
    status = error.status if isinstance(error, RequestError) else 404 if isinstance(error, NotInLedger) else 503
    log.info("request failed path=%s status=%d error=%s", request.url.path, status, type(error).__name__)
    if request.method == "POST":
        return JSONResponse({"error": str(error)}, status_code=status)
    title = "There is nothing here" if status == 404 else "This cannot be shown now"
    return HTMLResponse(failure_page(title, str(error)), status_code=status)
