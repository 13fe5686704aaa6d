"""The namespaces and the files of one sandbox, held by a process that does nothing and ends when we do.

It has a user namespace of its own, whose root is nobody outside; a network with nothing but its loopback; and, in its
own mount table, a file system in memory. Commands enter these one by one, each with processes of its own.
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

# The loopback of a sandbox, entered from outside: brought up once, listened at for whoever lets something in.
#
# A socket belongs to the network that it was made in, wherever it is used. Root enters that network in a thread that
# ends right after; anybody else needs a process for it, since the sandbox's user namespace has to be entered first.

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


REMEDY = "apt-get install bubblewrap (0.7 or later), as root"
TOOLS = ("bwrap", "nice", "unshare", "nsenter", "mount", "tar", "sh")
ROOT = "/mnt/room/root"
"""where the holder's mount table has the root of the sandbox"""
CLEAN = "/mnt/clean"
"""where it has the root as it was at the beginning, once `Holder.make_clean` has run"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

NICE = 10
"""how far what environments run stands back from what serves people"""
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
"""lists that an agent may be asked to change, and that no program runs"""
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
    """See the module. ``pid`` is the process whose namespaces are to be entered."""

    def __init__(self, process: subprocess.Popen[bytes], *, as_root: bool) -> None:
        self._process = process
        self._as_root = as_root
        self.pid = process.pid

    @property
    def entering(self) -> Sequence[str]:
        """The beginning of a command that runs inside."""
        return (*_entering(self.pid, as_root=self._as_root), "-n", "-i")

    @property
    def outside(self) -> str:
        """Where this machine finds the root of the sandbox."""
        return f"/proc/{self.pid}/root{ROOT}"

    async def make_clean(self, settings: SandboxSettings, *, accounts: bool = False) -> None:
        """Make `CLEAN`, where no folder of this machine serves as such. ``accounts``: with these lists as left."""
        if settings.root is None:
            script = f"set -e; {_CLEAN}; {_ACCOUNTS if accounts else ':'}"
            entering = _entering(self.pid, as_root=self._as_root)
            await _finish(["nice", "-n", str(NICE), *entering, "sh", "-c", script], data=skeleton())

    async def listen(self, port: int) -> socket.socket:
        """A socket that listens at this port of the sandbox's loopback, with the loopback up."""
        return await listen(self.pid, port)

    async def close(self) -> None:
        """End it, and with it all files. Safe to call twice."""
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
    """Namespaces and a file system for one sandbox. Raises NoSandbox where they cannot be had."""
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
    """The beginning of a command, to run inside the holder's mounts, that first puts the system folders back.

    Only where no process of an agent is left: it could put links in the way.
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
    """Raises NoSandbox, with the install line, where a program is missing."""
    if sys.platform != "linux":
        raise NoSandbox("a sandbox for commands needs Linux", remedy="use env.sandbox.driver = podman or docker")
    for tool in TOOLS:
        if shutil.which(tool, path=PATH) is None:
            what = "bubblewrap" if tool == "bwrap" else f"the program {tool!r} (Debian: util-linux, tar)"
            raise NoSandbox(f"programs cannot be run apart from this machine: {what} is not installed", remedy=REMEDY)


def _begin(settings: SandboxSettings, *, as_root: bool) -> subprocess.Popen[bytes]:
    """The process, with its namespaces. Root shows folders that only root may reach before it becomes nobody."""
    own = ("nice", "-n", str(NICE), "unshare", "-U", "-m", "-n", "-i")
    if as_root:
        script = f"{_FOLDERS}{_BINDS}; exec {' '.join(own)} sh -c '{_READY}'"
        command = ["unshare", "-m", "sh", "-c", script, "sh", *settings.binds]
    else:
        command = [*own, "-r", "sh", "-c", f"{_FOLDERS}; {_READY}"]
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
    said = os.read(process.stdout.fileno(), 4096)
    if said != b"\n":
        raise NoSandbox(
            f"the namespaces of a sandbox could not be made: {said.decode(errors='replace').strip()[-300:]}",
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
    kept = [] if as_root else ["--preserve-credentials"]
    return ["nsenter", "-t", str(pid), "-U", "-m", *kept]


def _map_users(pid: int, *, outside: int) -> None:
    """Users 0 to 65535 inside are these outside. A system of its own keeps the owners that its files have."""
    for kind in ("uid_map", "gid_map"):
        Path("/proc", str(pid), kind).write_text(f"0 {outside} {_RANGE}")


def _some_range() -> int:
    """User ids that nobody has, and that no other sandbox is likely to have."""
    return 0x10000000 + _RANGE * random.SystemRandom().randrange(8192)


async def _finish(command: Sequence[str], *, data: bytes) -> None:
    """Run a step of the set-up. Raises NoSandbox with what it said."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": PATH},
        cwd="/",
    )
    try:
        said, _ = await in_time(process.communicate(data), "the files of a sandbox could not be made", BEGIN_SECONDS)
    except BaseException:  # also where the episode is cancelled: nothing is left running
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await to_its_end(process.wait())
        raise
    if process.returncode:
        raise NoSandbox(f"a sandbox could not be set up: {said.decode(errors='replace').strip()[-300:]}")


# --- what a sandbox on the programs of this machine begins with -----------------------------------------------------

SHOWN = ("/etc/alternatives", "/etc/ssl", "/etc/pam.d", "/etc/security", "/etc/ld.so.conf.d", "/etc/ca-certificates")
"""folders beside /usr that programs need to run, shown read-only"""
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
    """The writable part as a tar archive: folders, users, and the few files of /etc that programs look for."""
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
    found: dict[str, str | bytes] = {}
    for name in _COPIED:
        with contextlib.suppress(OSError):
            found[name] = Path("/etc", name).read_bytes()
    return found


def _add(tar: tarfile.TarFile, name: str, *, mode: int, kind: bytes, data: bytes = b"", link: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.type, entry.size, entry.linkname = mode, kind, len(data), link
    tar.addfile(entry, io.BytesIO(data))
