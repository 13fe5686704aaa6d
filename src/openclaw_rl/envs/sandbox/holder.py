"""Holds one sandbox's namespaces and files by an idle process that ends when we do.

The process has its own user namespace, whose root is unprivileged outside; a network with only a loopback; and a file
system in memory in its own mount table. Commands enter these namespaces one at a time, each with its own processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import functools
import io
import os
import random
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from openclaw_rl.envs.sandbox.contract import SYSTEM, SandboxSettings
from openclaw_rl.envs.sandbox.execution import BEGIN_SECONDS, GRACE, in_time, readable, to_its_end
from openclaw_rl.errors import NoSandbox

# A sandbox's loopback, entered from outside: brought up once, then listened at for a service that the sandbox may use.
#
# A socket belongs to the network in which it was created, wherever it is used. Root enters that network in a thread
# that ends right after; other users need a helper process, since it must enter the sandbox's user namespace first.

T = TypeVar("T")
_SET_FLAGS, _UP = 0x8914, 1
_BACKLOG = 128
_HELPER = """
import sys
sys.path[:0] = {path!r}
from openclaw_rl.envs.sandbox import holder as network
network.helper(*map(int, sys.argv[1:]))
"""


async def bring_up(pid: int) -> None:
    """Bring up the loopback of the process ``pid``."""
    await _inside(pid, 0)


async def listen(pid: int, port: int) -> socket.socket:
    """Return a socket that listens there; raise NoSandbox if the port is taken."""
    listening = await _inside(pid, port)
    assert listening is not None
    listening.setblocking(False)
    return listening


async def _inside(pid: int, port: int) -> socket.socket | None:
    try:
        if os.geteuid() == 0:
            return await asyncio.to_thread(_in_thread, lambda: _enter(pid, port, ("net",)))
        return await _by_process(pid, port)
    except OSError as error:
        raise NoSandbox(f"the network of a sandbox cannot be used: {error}") from error


def _in_thread(work: Callable[[], T]) -> T:
    """Return the result of ``work`` from a new thread, so that only this thread enters the namespaces."""
    results: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return results[0]


def _enter(pid: int, port: int, kinds: tuple[str, ...]) -> socket.socket | None:
    """Enter the namespaces, bring up the loopback, and listen at ``port`` unless it is 0."""
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
    parent, child = socket.socketpair()
    with parent, child:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _HELPER.format(path=sys.path), str(pid), str(port), str(child.fileno())),
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(child.fileno(),),
        )
        _, errors = await process.communicate()
        if process.returncode:
            raise OSError(errors.decode(errors="replace").strip()[-300:])
        if not port:
            return None
        _, [fd], _, _ = socket.recv_fds(parent, 1, 1)
        return socket.socket(fileno=fd)


def helper(pid: int, port: int, answer: int) -> None:
    """Run the helper process: send the listening socket back through the file descriptor ``answer``."""
    listening = _enter(pid, port, ("user", "net"))
    if listening is not None:
        socket.send_fds(socket.socket(fileno=answer), [b"!"], [listening.fileno()])


REMEDY = "apt-get install bubblewrap (0.7 or later), as root"
TOOLS = ("bwrap", "nice", "unshare", "nsenter", "mount", "tar", "sh")
ROOT = "/mnt/room/root"
"""path of the sandbox's root in the holder's mount table"""
CLEAN = "/mnt/clean"
"""path of the initial root there, once `Holder.make_clean` has run"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

NICE = 10
"""niceness of environment programs, which yield to serving"""
_RANGE = 65536
_READY = "echo; exec cat"
_FOLDERS = "set -e; umask 022; mount -t tmpfs -o size=64k,mode=755 tmpfs /mnt; mkdir /mnt/room /mnt/binds /mnt/clean"
_BINDS = (
    '; number=0; for each in "$@"; do mkdir /mnt/binds/$number;'
    ' mount --rbind "$each" /mnt/binds/$number; number=$((number + 1)); done'
)
_SCRATCH = "mount -t tmpfs -o size=$1,mode=755 tmpfs /mnt/room; mkdir /mnt/room/root"
_UNPACK = "tar -xf - -C /mnt/room/root --no-same-owner"
_OVERLAY = (
    "mkdir /mnt/room/upper /mnt/room/work;"
    'mount -t overlay overlay -o "userxattr,lowerdir=$2,upperdir=/mnt/room/upper,workdir=/mnt/room/work" /mnt/room/root'
)


_CLEAN = "mountpoint -q /mnt/clean || mount -t tmpfs -o size=4m,mode=755 tmpfs /mnt/clean; tar -xf - -C /mnt/clean"
_ACCOUNTS = (
    "for name in passwd group shadow gshadow hosts hostname; do file=/mnt/room/root/etc/$name;"
    ' [ -f "$file" ] && [ ! -L "$file" ] && head -c 65536 "$file" > /mnt/clean/etc/$name; done; :'
)
"""account and host lists that an agent may have to change, and that no program executes"""
_MORE_ROOM = 64 << 20
"""bytes for a checker on a disk that an agent has filled"""
_RESTORE = """
set -e
mount -t tmpfs -o remount,size={size},nr_inodes=0 tmpfs /mnt/room
for name in {system} proc dev; do
  mine={root}/$name clean={clean}/$name
  if [ -L "$clean" ]; then
    [ -L "$mine" ] && [ "$(readlink "$mine")" = "$(readlink "$clean")" ] && continue
    rm -rf "$mine"; ln -sT "$(readlink "$clean")" "$mine"
  elif [ -d "$clean" ] || [ $name = etc ] || [ $name = proc ] || [ $name = dev ]; then
    [ -d "$mine" ] && [ ! -L "$mine" ] && continue
    rm -rf "$mine"; mkdir "$mine"
  else rm -rf "$mine"; fi
done
for place in {places}; do
  [ -d "{root}$place" ] && [ ! -L "{root}$place" ] && continue
  rm -rf "{root}$place"; mkdir "{root}$place"
done
exec "$@"
"""


class Holder:
    """See the module. ``pid`` is the process whose namespaces commands enter."""

    def __init__(self, process: subprocess.Popen[bytes], *, as_root: bool) -> None:
        self._process = process
        self._as_root = as_root
        self.pid = process.pid

    @property
    def entering(self) -> Sequence[str]:
        """The prefix for a command that runs inside."""
        return (*_entering(self.pid, as_root=self._as_root), "-n", "-i")

    @property
    def outside(self) -> str:
        """The host path of the sandbox's root."""
        return f"/proc/{self.pid}/root{ROOT}"

    async def make_clean(self, settings: SandboxSettings, *, accounts: bool = False) -> None:
        """Create `CLEAN` unless a host folder has that role; ``accounts`` adds the agent's versions of `_ACCOUNTS`."""
        if settings.root is None:
            script = f"set -e; {_CLEAN}; {_ACCOUNTS if accounts else ':'}"
            entering = _entering(self.pid, as_root=self._as_root)
            await _finish(["nice", "-n", str(NICE), *entering, "sh", "-c", script], data=skeleton())

    async def listen(self, port: int) -> socket.socket:
        """Bring up the sandbox's loopback and return a socket that listens there at ``port``."""
        return await listen(self.pid, port)

    async def close(self) -> None:
        """End the holder, and with it all files. Safe to call twice."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            end = os.pidfd_open(self._process.pid)
            try:
                await in_time(readable(end), "the holder of a sandbox could not be ended", GRACE)
            finally:
                os.close(end)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


async def hold(settings: SandboxSettings) -> Holder:
    """Create namespaces and a file system for one sandbox; raise NoSandbox if the machine does not permit them."""
    check_tools()
    as_root = os.geteuid() == 0
    holder = Holder(_begin(settings, as_root=as_root), as_root=as_root)
    try:
        await _fill(holder, settings, as_root=as_root)
    except BaseException:
        await holder.close()
        raise
    return holder


def restoring(settings: SandboxSettings) -> Sequence[str]:
    """Return a command prefix that first restores the system folders, inside the holder's mounts.

    Only safe after every agent process has ended: a live one could plant links.
    """
    binds = [Path(path) for path in settings.binds if Path(path).parts[1] not in SYSTEM]
    folders = {str(above) for path in binds for above in (path, *path.parents)} - {"/"}
    script = _RESTORE.format(
        size=settings.limits.disk + _MORE_ROOM,
        system=" ".join(SYSTEM),
        root=ROOT,
        clean=shlex.quote(settings.root or CLEAN),
        places=" ".join(map(shlex.quote, sorted(folders))),
    )
    return ("sh", "-c", script, "sh")


def check_tools() -> None:
    """Raise NoSandbox, with the install line, if a program is missing."""
    if sys.platform != "linux":
        raise NoSandbox("a sandbox for commands needs Linux", remedy="use env.sandbox.driver = podman or docker")
    for tool in TOOLS:
        if shutil.which(tool, path=PATH) is None:
            what = "bubblewrap" if tool == "bwrap" else f"the program {tool!r} (Debian: util-linux, tar)"
            raise NoSandbox(f"cannot isolate programs from this machine: {what} is not installed", remedy=REMEDY)


def _begin(settings: SandboxSettings, *, as_root: bool) -> subprocess.Popen[bytes]:
    """Start the process with its namespaces. Root binds folders that only root can read, then becomes unprivileged."""
    unshare = ("nice", "-n", str(NICE), "unshare", "-U", "-m", "-n", "-i")
    if as_root:
        script = f"{_FOLDERS}{_BINDS}; exec {' '.join(unshare)} sh -c '{_READY}'"
        command = ["unshare", "-m", "sh", "-c", script, "sh", *settings.binds]
    else:
        command = [*unshare, "-r", "sh", "-c", f"{_FOLDERS}; {_READY}"]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": PATH},
        cwd="/",
        start_new_session=True,
    )


async def _fill(holder: Holder, settings: SandboxSettings, *, as_root: bool) -> None:
    process = holder._process
    assert process.stdout is not None
    await in_time(readable(process.stdout.fileno()), "the namespaces of a sandbox could not be made", BEGIN_SECONDS)
    line = os.read(process.stdout.fileno(), 4096)
    if line != b"\n":
        raise NoSandbox(
            f"the namespaces of a sandbox could not be made: {line.decode(errors='replace').strip()[-300:]}",
            remedy="allow user namespaces (sysctl user.max_user_namespaces), or run where they are allowed",
        )
    if as_root:
        _map_users(holder.pid, outside=0 if settings.root else _some_range())
    script = f"set -e; {_SCRATCH}; {_OVERLAY if settings.root else _UNPACK}"
    entering = _entering(holder.pid, as_root=as_root)
    command = [
        "nice",
        "-n",
        str(NICE),
        *entering,
        "sh",
        "-c",
        script,
        "sh",
        str(settings.limits.disk),
        settings.root or "",
    ]
    await asyncio.gather(bring_up(holder.pid), _finish(command, data=b"" if settings.root else skeleton()))


def _entering(pid: int, *, as_root: bool) -> list[str]:
    credentials = [] if as_root else ["--preserve-credentials"]
    return ["nsenter", "-t", str(pid), "-U", "-m", *credentials]


def _map_users(pid: int, *, outside: int) -> None:
    """Map the users 0 to 65535 inside to a range outside. A separate system keeps its files' owners."""
    for kind in ("uid_map", "gid_map"):
        Path("/proc", str(pid), kind).write_text(f"0 {outside} {_RANGE}")


def _some_range() -> int:
    """Return a range of user ids outside any real user's, with little chance of a clash with another sandbox."""
    return 0x10000000 + _RANGE * random.SystemRandom().randrange(8192)


async def _finish(command: Sequence[str], *, data: bytes) -> None:
    """Run a set-up step; raise NoSandbox with its output if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": PATH},
        cwd="/",
    )
    try:
        output, _ = await in_time(process.communicate(data), "the files of a sandbox could not be made", BEGIN_SECONDS)
    except BaseException:  # also on cancellation: no process remains
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await to_its_end(process.wait())
        raise
    if process.returncode:
        raise NoSandbox(f"a sandbox could not be set up: {output.decode(errors='replace').strip()[-300:]}")


# --- the initial files of a sandbox on this machine's programs -------------------------------------------------------

SHOWN = ("/etc/alternatives", "/etc/ssl", "/etc/pam.d", "/etc/security", "/etc/ld.so.conf.d", "/etc/ca-certificates")
"""folders besides /usr that programs need, exposed read-only"""
_COPIED = (
    *("ld.so.cache", "ld.so.conf", "nsswitch.conf", "login.defs", "os-release", "debian_version", "bash.bashrc"),
    *("profile", "services", "protocols", "shells", "mime.types", "magic", "host.conf", "adduser.conf", "inputrc"),
)
_WRITTEN = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
    "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "group": "root:x:0:\ndaemon:x:1:\nadm:x:4:\nsudo:x:27:\nwww-data:x:33:\nshadow:x:42:\nusers:x:100:\n"
    "nogroup:x:65534:\n",
    "shadow": "root:*:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n",
    "gshadow": "root:*::\nusers:*::\nnogroup:*::\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
}
_DIRECTORIES = {
    **dict.fromkeys(("etc", "home", "opt", "srv", "mnt", "media", "run", "usr", "proc", "dev", "var"), 0o755),
    **dict.fromkeys(("var/log", "var/lib", "var/cache", "var/spool", "var/www", "var/mail"), 0o755),
    **{"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700},
}


@functools.cache
def skeleton() -> bytes:
    """Return the writable part as a tar archive: folders, users, and the few /etc files that programs read."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, mode in _DIRECTORIES.items():
            _add(tar, name, mode=mode, kind=tarfile.DIRTYPE)
        for name in SHOWN:
            if Path(name).is_dir():
                _add(tar, name.lstrip("/"), mode=0o755, kind=tarfile.DIRTYPE)
        for name in SYSTEM:
            if (place := Path("/", name)).is_symlink():
                _add(tar, name, mode=0o777, kind=tarfile.SYMTYPE, link=str(place.readlink()))
            elif place.is_dir() and name not in _DIRECTORIES:
                _add(tar, name, mode=0o755, kind=tarfile.DIRTYPE)
        for name, text in (_copied() | _WRITTEN).items():
            data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
            _add(tar, f"etc/{name}", mode=0o640 if "shadow" in name else 0o644, kind=tarfile.REGTYPE, data=data)
    return out.getvalue()


def _copied() -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {}
    for name in _COPIED:
        with contextlib.suppress(OSError):
            files[name] = Path("/etc", name).read_bytes()
    return files


def _add(tar: tarfile.TarFile, name: str, *, mode: int, kind: bytes, data: bytes = b"", link: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.type, entry.size, entry.linkname = mode, kind, len(data), link
    tar.addfile(entry, io.BytesIO(data))
