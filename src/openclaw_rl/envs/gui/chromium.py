"""Chromium in a network namespace of its own: where it lies, and the script that starts it there.

The namespace has its own loopback and no other interface, so that no page, worker or prefetch reaches anything, by
whatever protocol. The files it sees are its own programs, fonts, and the folders of the tasks' pages, all read-only;
its profile is in memory and goes with it.
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
"""where Chromium may be: first the program itself, which Debian's script of that name starts"""
INSTALL: Final = "apt-get install chromium"
PROXY_PORT: Final = 3128
"""where the namespace's loopback leads to the pages that have an address, see `origins`"""
MEMORY: Final = 4 << 30
"""most bytes of the whole browser, where control groups can be written; 16 pages of MiniWoB++ take a quarter of it"""
PROCESSES: Final = 2048
ANSWER_SECONDS: Final = 20.0
"""the longest that a page may take over one command: a script that never ends answers none"""
FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"),
    *("--disable-component-update", "--disable-default-apps", "--disable-extensions", "--disable-sync"),
    "--disable-features=Translate,OptimizationHints,MediaRouter,BackForwardCache,SpareRendererForSitePerProcess",
    *("--no-first-run", "--mute-audio", "--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
    *("--enable-blink-features=ComputedAccessibilityInfo", "--force-webrtc-ip-handling-policy=disable_non_proxied_udp"),
    *(f"--proxy-server=http://127.0.0.1:{PROXY_PORT}", "--proxy-bypass-list=<-loopback>"),
)
"""``--no-sandbox``: bubblewrap is the sandbox, in which Chromium's own cannot be set up a second time. No renderer is
begun for a page that may come: with kept tabs none does, and beginning one costs as much as an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """A browser: who drives it, its program, the folders whose pages it may show, and the origins it may reach.

    ``keeps`` says that its pages remember nothing, so that an episode may take over the tab of one that has ended.
    """

    driver: BrowserDriver
    program: str
    folders: tuple[Path, ...]
    origins: frozenset[str]
    keeps: bool


def find_chromium(given: str | None = None) -> str:
    """The program. Raises EnvFailed, with the line that installs it, where there is none."""
    for place in (given,) if given else PLACES:
        found = shutil.which(place)
        if found is not None:
            return found
    raise EnvFailed(f"there is no {given or 'Chromium'} on this machine", remedy=INSTALL)


def check_browser(driver: BrowserDriver, given: str | None = None) -> None:
    """Raise for what a browser needs and this machine lacks, with the line that installs it."""
    find_chromium(given)
    _need_bubblewrap()
    if importlib.util.find_spec(driver) is None:
        raise MissingExtra(driver, "gui")
    if driver == "selenium":
        find_chromedriver()


def find_chromedriver() -> str:
    """The program through which selenium drives Chromium. Raises EnvFailed where there is none."""
    found = shutil.which("chromedriver")
    if found is None:
        raise EnvFailed(
            "selenium drives Chromium through chromedriver, which is not here", remedy="apt-get install chromium-driver"
        )
    return found


def _need_bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        raise NoSandbox("a browser is kept apart by bubblewrap, which is not here", remedy="apt-get install bubblewrap")


def write_launcher(folder: Path, settings: BrowserSettings, group: cgroups.ControlGroup) -> Path:
    """A script in ``folder`` that starts the browser in its namespace. Raises NoSandbox where it cannot be had.

    The process id of the browser's namespace is written to ``folder/pid`` (as JSON) when it has begun.
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
    """What bubblewrap is told: namespaces, programs, pages; nothing of this machine's environment or homes."""
    shown = ["/etc/fonts", "/etc/chromium", "/etc/alternatives", "/etc/ld.so.cache", str(Path(settings.program).parent)]
    return [
        *("--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run", "--clearenv"),
        *("--ro-bind", "/usr", "/usr", *_system_folders()),
        *(part for path in (*shown, *map(str, settings.folders)) for part in ("--ro-bind-try", path, path)),
        *("--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8", "--setenv", "PATH", "/usr/bin:/bin"),
        *("--chdir", "/"),
    ]


def _system_folders() -> list[str]:
    """Links into /usr where the system has merged its folders, else the folders."""
    found: list[str] = []
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):
        if path.is_symlink():
            found += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            found += ["--ro-bind", str(path), str(path)]
    return found


def shown_folders(folders: Sequence[Path]) -> tuple[Path, ...]:
    """The same folders as they really lie, each once."""
    return tuple(dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders))


# The only way out of a browser's namespace: a proxy on its loopback that leads to the origins the tasks name.

HEAD: Final = 64 << 10
"""most bytes of a request's head"""
_WAIT: Final = 10.0


class OriginProxy:
    """Forwards HTTP and tunnels to these origins, and refuses the rest with 403."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)
        self._server: asyncio.Server | None = None

    async def listen_inside(self, info: Path) -> None:
        """Listen on the loopback of the namespace that bubblewrap tells of in ``info``.

        Without an origin nothing listens: there is no way out at all.
        """
        if not self._origins:
            return
        listening = await holder.listen(await _namespace(info), PROXY_PORT)
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=HEAD)

    async def close(self) -> None:
        """Listen no more."""
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
    """Scheme, host and port of an address.

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
    """The same fields for a server that answers once: a second request would go past the check."""
    kept = [
        field
        for field in fields.split(b"\r\n")
        if field and not field.lower().startswith((b"proxy-", b"connection:", b"keep-alive:"))
    ]
    upgrade = any(field.lower().startswith(b"upgrade:") for field in kept)
    return b"\r\n".join([*kept, b"Connection: " + (b"Upgrade" if upgrade else b"close"), b"", b""])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(64 << 10):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _namespace(info: Path) -> int:
    """The process id that bubblewrap has written, once it is there."""
    for _ in range(100):
        found = _child(info)
        if found is not None:
            return found
        await asyncio.sleep(0.05)
    raise EnvFailed("the network of the browser cannot be found")


def _child(info: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads(info.read_text(encoding="utf-8"))["child-pid"])
    return None
