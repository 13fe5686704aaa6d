"""The loopback of a sandbox, entered from outside: brought up once, listened at for whoever lets something in.

A socket belongs to the network that it was made in, wherever it is used. Root enters that network in a thread that ends
right after; anybody else needs a process for it, since the sandbox's user namespace has to be entered first.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from openclaw_rl.errors import NoSandbox

T = TypeVar("T")
_SET_FLAGS, _UP = 0x8914, 1
_BACKLOG = 128
_HELPER = """
import sys
sys.path[:0] = {path!r}
from openclaw_rl.envs.sandbox import network
network.helper(*map(int, sys.argv[1:]))
"""


async def bring_up(pid: int) -> None:
    """Bring the loopback up that the process ``pid`` is in."""
    await _inside(pid, 0)


async def listen(pid: int, port: int) -> socket.socket:
    """A socket that listens there. Raises NoSandbox where the port is taken."""
    found = await _inside(pid, port)
    assert found is not None
    found.setblocking(False)
    return found


async def _inside(pid: int, port: int) -> socket.socket | None:
    try:
        if os.geteuid() == 0:
            return await asyncio.to_thread(_in_thread, lambda: _enter(pid, port, ("net",)))
        return await _by_process(pid, port)
    except OSError as error:
        raise NoSandbox(f"the network of a sandbox cannot be used: {error}") from error


def _in_thread(work: Callable[[], T]) -> T:
    """What ``work`` gives, in a thread of its own: what it enters, nothing else is in."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _enter(pid: int, port: int, kinds: tuple[str, ...]) -> socket.socket | None:
    """Enter the namespaces, bring the loopback up, and listen at ``port`` if it is not 0."""
    library = ctypes.CDLL(None, use_errno=True)
    for kind in kinds:
        place = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        try:
            if library.setns(place, 0):
                raise OSError(ctypes.get_errno(), f"the {kind} namespace of a sandbox cannot be entered")
        finally:
            os.close(place)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        fcntl.ioctl(device, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))
    return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG) if port else None


async def _by_process(pid: int, port: int) -> socket.socket | None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _HELPER.format(path=sys.path), str(pid), str(port), str(theirs.fileno())),
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
        )
        _, said = await process.communicate()
        if process.returncode:
            raise OSError(said.decode(errors="replace").strip()[-300:])
        if not port:
            return None
        _, [fd], _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=fd)


def helper(pid: int, port: int, answer: int) -> None:
    """What the process does: the socket goes back through the file descriptor ``answer``."""
    listening = _enter(pid, port, ("user", "net"))
    if listening is not None:
        socket.send_fds(socket.socket(fileno=answer), [b"!"], [listening.fileno()])
