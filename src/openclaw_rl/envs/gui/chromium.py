"""Chromium in its own network namespace: its location, and the script that starts it there.

The namespace has its own loopback and no other interface, so that no page, worker or prefetch has network access by any
protocol. It sees only its own programs, fonts, and the tasks' page folders, all read-only; its profile is in memory and
is discarded with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shlex
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from openclaw_rl.envs.sandbox import cgroups, holder
from openclaw_rl.errors import EnvFailed, MissingExtra, NoSandbox

BrowserDriver = Literal["playwright", "selenium"]

PLACES: Final = ("/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome", "chrome")
"""Chromium's possible locations: first the program itself, which Debian's script with that name starts"""
INSTALL: Final = "apt-get install chromium"
PROXY_PORT: Final = 3128
"""the port on the namespace's loopback that leads to pages on servers, see `origins`"""
MEMORY: Final = 4 << 30
"""maximum bytes for the whole browser, if control groups are writable; 16 MiniWoB++ pages use a quarter"""
PROCESSES: Final = 2048
ANSWER_SECONDS: Final = 20.0
"""maximum seconds for one command: a script that never ends answers none"""
FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"),
    *("--disable-component-update", "--disable-default-apps", "--disable-extensions", "--disable-sync"),
    "--disable-features=Translate,OptimizationHints,MediaRouter,BackForwardCache,SpareRendererForSitePerProcess",
    *("--no-first-run", "--mute-audio", "--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
    *("--enable-blink-features=ComputedAccessibilityInfo", "--force-webrtc-ip-handling-policy=disable_non_proxied_udp"),
    *(f"--proxy-server=http://127.0.0.1:{PROXY_PORT}", "--proxy-bypass-list=<-loopback>"),
)
"""``--no-sandbox``: bubblewrap is the sandbox, inside which Chromium cannot set up its own. No spare renderer is
started: with kept tabs no new page needs one, and starting one costs as much as an episode.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """Settings for a browser: its driver, its program, the folders whose pages it may show, and the reachable origins.

    ``keeps``: its pages keep no state, so that an episode may reuse the tab from one that has ended.
    """

    driver: BrowserDriver
    program: str
    folders: tuple[Path, ...]
    origins: frozenset[str]
    keeps: bool


def find_chromium(given: str | None = None) -> str:
    """Return the program's path; raise EnvFailed, with the install command, if there is none."""
    for place in (given,) if given else PLACES:
        path = shutil.which(place)
        if path is not None:
            return path
    raise EnvFailed(f"there is no {given or 'Chromium'} on this machine", remedy=INSTALL)


def check_browser(driver: BrowserDriver, given: str | None = None) -> None:
    """Raise if this machine lacks a part that a browser needs, with the install command."""
    find_chromium(given)
    _need_bubblewrap()
    if importlib.util.find_spec(driver) is None:
        raise MissingExtra(driver, "gui")
    if driver == "selenium":
        find_chromedriver()


def find_chromedriver() -> str:
    """Return the path to chromedriver, through which selenium drives Chromium; raise EnvFailed if there is none."""
    path = shutil.which("chromedriver")
    if path is None:
        raise EnvFailed(
            "selenium drives Chromium through chromedriver, which is not installed",
            remedy="apt-get install chromium-driver",
        )
    return path


def _need_bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        raise NoSandbox(
            "the browser is isolated by bubblewrap, which is not installed", remedy="apt-get install bubblewrap"
        )


def write_launcher(folder: Path, settings: BrowserSettings, group: cgroups.ControlGroup) -> Path:
    """Write a script into ``folder`` that starts the browser in its namespace; raise NoSandbox if that is impossible.

    The process id in the browser's namespace is written to ``folder/pid`` (as JSON) once it has started.
    """
    _need_bubblewrap()
    joining = [f"echo $$ > {shlex.quote(file)}" for file in group.members]
    apart = shlex.join(["nice", "-n", "5", "bwrap", *_apart(settings), "--info-fd", "9", "--", settings.program])
    script = folder / "chromium"
    lines = ["#!/bin/sh", *joining, f'exec {apart} "$@" 9> {shlex.quote(str(folder / "pid"))}']
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    script.chmod(0o700)
    return script


def _apart(settings: BrowserSettings) -> list[str]:
    """Return bubblewrap's arguments: namespaces, programs, pages; not the host's environment or homes."""
    visible = [
        "/etc/fonts",
        "/etc/chromium",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        str(Path(settings.program).parent),
    ]
    return [
        *("--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run", "--clearenv"),
        *("--ro-bind", "/usr", "/usr", *_system_folders()),
        *(part for path in (*visible, *map(str, settings.folders)) for part in ("--ro-bind-try", path, path)),
        *("--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8", "--setenv", "PATH", "/usr/bin:/bin"),
        *("--chdir", "/"),
    ]


def _system_folders() -> list[str]:
    """Return links into /usr if the system has merged its folders, else the folders."""
    flags: list[str] = []
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):
        if path.is_symlink():
            flags += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            flags += ["--ro-bind", str(path), str(path)]
    return flags


def shown_folders(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders' real paths, without duplicates."""
    return tuple(dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders))


# The only network access from a browser's namespace: a proxy on its loopback to the origins that the tasks name.

HEAD: Final = 64 << 10
"""maximum bytes in a request's head"""
_WAIT: Final = 10.0


class OriginProxy:
    """Forwards HTTP and tunnels to these origins, and refuses all others with 403."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)
        self._server: asyncio.Server | None = None

    async def listen_inside(self, info: Path) -> None:
        """Listen on the loopback in the namespace that bubblewrap reports in ``info``.

        Without an origin it does not listen: there is no network access at all.
        """
        if not self._origins:
            return
        listening = await holder.listen(await _namespace(info), PROXY_PORT)
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=HEAD)

    async def close(self) -> None:
        """Stop listening."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            pass  # the browser shows a page that did not load
        finally:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _WAIT)
        line, _, fields = head.partition(b"\r\n")
        method, target, _ = line.decode("latin-1").split(" ", 2)
        tunnel = method == "CONNECT"
        origin = f"https://{target}" if tunnel else origin_of(target)
        if not self._allows(origin, target, tunnel=tunnel):
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        place = urlsplit(origin)
        there, out = await asyncio.wait_for(asyncio.open_connection(place.hostname, _port(origin)), _WAIT)
        if tunnel:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            parts = urlsplit(target)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            out.write(f"{method} {path} HTTP/1.1\r\n".encode("latin-1") + _closing(fields))
        try:
            await asyncio.gather(_copy(reader, out), _copy(there, writer))
        finally:
            out.close()

    def _allows(self, origin: str, target: str, *, tunnel: bool) -> bool:
        if not tunnel:
            return origin in self._origins
        host, _, port = target.rpartition(":")
        return bool({origin_of(f"{scheme}://{host}:{port}") for scheme in ("http", "https")} & self._origins)


def origin_of(address: str) -> str:
    """Return an address's scheme, host and port.

    >>> origin_of("https://Example.org/shop?x=1"), origin_of("http://localhost:3000/")
    ('https://example.org', 'http://localhost:3000')
    >>> origin_of("http://example.org:80/")
    'http://example.org'
    """
    parts = urlsplit(address)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


def _port(origin: str) -> int:
    parts = urlsplit(origin)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _closing(fields: bytes) -> bytes:
    """Return the header fields with the connection closed after one answer: a second request would bypass the check."""
    headers = [
        field
        for field in fields.split(b"\r\n")
        if field and not field.lower().startswith((b"proxy-", b"connection:", b"keep-alive:"))
    ]
    upgrade = any(field.lower().startswith(b"upgrade:") for field in headers)
    return b"\r\n".join([*headers, b"Connection: " + (b"Upgrade" if upgrade else b"close"), b"", b""])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(64 << 10):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _namespace(info: Path) -> int:
    """Wait for bubblewrap to write the process id, and return it."""
    for _ in range(100):
        pid = _child(info)
        if pid is not None:
            return pid
        await asyncio.sleep(0.05)
    raise EnvFailed("the browser's network namespace was not found")


def _child(info: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads(info.read_text(encoding="utf-8"))["child-pid"])
    return None
