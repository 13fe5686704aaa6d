"""Commands and shells that want out of their sandbox, or the machine for themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sandboxes import LIMITS, needs_sandbox

from openclaw_rl.envs.sandbox import CommandResult, Sandbox, SandboxSettings, execution, open_sandbox
from openclaw_rl.envs.sandbox.execution import in_time
from openclaw_rl.errors import NoSandbox


def made(**more: Any) -> SandboxSettings:
    return SandboxSettings(**{"limits": LIMITS, "driver": "bubblewrap", "root": None, **more})


pytestmark = [pytest.mark.slow, pytest.mark.anyio, needs_sandbox]


@pytest.fixture
async def room() -> AsyncIterator[Sandbox]:
    sandbox = await open_sandbox(made())
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def sh(room: Sandbox, script: str, **given: float) -> CommandResult:
    return await room.run(["bash", "-c", script], **given)


def left(mark: str) -> list[str]:
    """Processes of this machine with this in their command."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended while we looked
            if mark.encode() in place.read_bytes():
                found.append(str(place))
    return found


def children() -> set[str]:
    """Processes that this one has begun and not yet waited for."""
    return {pid for place in Path("/proc/self/task").glob("*/children") for pid in place.read_text().split()}


async def until(condition: Callable[[], bool]) -> None:
    """What other processes do takes its time."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


# --- what it is for ---


async def test_files_stay_between_commands_and_processes_do_not(room: Sandbox) -> None:
    mark = f"3{os.getpid()}.5"
    first = await sh(room, f"echo one > note; sleep {mark} & echo $HOME $(pwd) $(whoami)")
    assert (first.code, first.output) == (0, "/root /root root\n")
    assert left(mark) == []
    assert (await sh(room, "cat note; exit 3")).output == "one\n"
    assert (await sh(room, "exit 3")).code == 3


async def test_files_are_written_and_read_from_outside(room: Sandbox) -> None:
    data = bytes(range(256)) * 1000
    await room.write("/opt/a/b.bin", data)
    assert await room.read("/opt/a/b.bin", most=1 << 20) == data
    assert await room.read("/opt/a/b.bin", most=10) == data[:10]
    with pytest.raises(FileNotFoundError, match="no file /opt/c"):
        await room.read("/opt/c", most=10)
    await room.write("/opt/say", b"#!/bin/sh\nread line; echo $line $WORD\n", executable=True)
    assert (await room.run(["/opt/say"], stdin=b"hello\n", env={"WORD": "there"})).output == "hello there\n"


async def test_a_shell_keeps_its_folder_its_variables_and_its_jobs(room: Sandbox) -> None:
    shell = await room.shell()
    await shell.run("cd /opt; word=five; sleep 30 & echo begun")
    seen = await shell.run("pwd; echo $word; jobs | wc -l; [ -t 1 ] && echo terminal; false")
    assert (seen.code, seen.output) == (1, "/opt\nfive\n1\nterminal\n")
    long = "\n".join(f"echo line {number} of \"many\" 'quotes'" for number in range(1000))
    assert (await shell.run(long)).output.count("of many quotes\n") == 1000


async def test_out_of_time_the_shell_gets_ctrl_c_and_goes_on(room: Sandbox) -> None:
    shell = await room.shell()
    await shell.run("word=five")
    slow = await shell.run("echo begun; sleep 60", seconds=0.5)
    assert (slow.code, slow.output, slow.stopped) == (None, "begun\n", "stopped after 0.5 s")
    assert (await shell.run("echo $word")).output == "five\n"


async def test_a_shell_that_does_not_come_back_is_begun_anew(room: Sandbox) -> None:
    shell = await room.shell()
    await shell.run("word=five; echo kept > note")
    stuck = await shell.run("trap '' INT; while :; do :; done", seconds=0.3)
    assert "begun anew" in stuck.stopped
    assert (await shell.run("echo [$word] $(cat note)")).output == "[] kept\n"
    assert (await shell.run("exit 7")).code == 7
    assert (await shell.run("echo again")).output == "again\n"


async def test_a_program_that_asks_is_answered_by_typing(room: Sandbox) -> None:
    shell = await room.shell()
    asking = asyncio.create_task(shell.run("read -p 'name? ' name; echo hello $name"))
    await asyncio.sleep(0)
    await shell.type("Ada\n")
    assert (await asking).output == "name? hello Ada\n"


async def test_we_can_listen_in_its_network_and_nobody_else_is_there(room: Sandbox) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello from outside\n")
        writer.close()

    server = await asyncio.start_server(greet, sock=await room.listen(9000))
    async with server:
        assert (await sh(room, "cat < /dev/tcp/127.0.0.1/9000")).output == "hello from outside\n"
    assert (await sh(room, "cat < /dev/tcp/127.0.0.1/9000")).code == 1


# --- out ---


async def test_there_is_no_network_but_its_own_loopback(room: Sandbox) -> None:
    outside = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    async with outside:
        port = outside.sockets[0].getsockname()[1]
        for address in (f"127.0.0.1/{port}", "1.1.1.1/53", "169.254.169.254/80"):
            assert (await sh(room, f"timeout 5 cat < /dev/tcp/{address}")).code == 1, address
    devices = await sh(room, "tail -n +3 /proc/net/dev | cut -d: -f1; cat /proc/net/route | wc -l")
    assert devices.output.split() == ["lo", "1"]


async def test_nothing_of_the_host_is_seen_but_its_programs(
    room: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("x")
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    hidden = [str(tmp_path), str(Path.cwd()), "/sys/kernel", "/boot/grub", "/var/lib/dpkg", "/etc/apt", "/mnt/room"]
    hidden += [str(Path.home() / name) for name in (".bashrc", ".ssh", ".cache")]
    seen = await sh(room, "env; " + "; ".join(f"test -e {path} && echo SEEN {path}" for path in hidden))
    assert "SEEN" not in seen.output
    assert "SECRET_OF_THE_HOST" not in seen.output
    users = {line.partition(":")[0] for line in (await sh(room, "cat /etc/passwd /etc/shadow")).output.splitlines()}
    assert users == {"root", "daemon", "www-data", "nobody"}


async def test_links_and_mounts_lead_nowhere_outside(room: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    await sh(room, f"ln -s {tmp_path} out; ln -s ../../../../../../..{tmp_path}/secret up; ln -s /proc/1/root r")
    for path in ("/root/out/secret", "/root/up", f"/root/r{tmp_path}/secret", f"/proc/self/root{tmp_path}/secret"):
        with pytest.raises(FileNotFoundError):
            await room.read(path, most=10)
    with contextlib.suppress(OSError):
        await room.write("/root/out/written", b"x")
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]
    tried = await sh(room, "mkdir m; mount -t tmpfs none m || mount --bind / m || chroot / true || echo none")
    assert tried.output.endswith("none\n")


async def test_the_hosts_programs_cannot_be_changed(room: Sandbox) -> None:
    before = sorted(Path("/usr/bin").iterdir())
    tried = await sh(
        room, "touch /usr/bin/x; rm -f /usr/bin/env; echo x >> /usr/bin/env; chmod 777 /usr; ls /usr/bin/env"
    )
    assert tried.output.endswith("/usr/bin/env\n")
    assert sorted(Path("/usr/bin").iterdir()) == before


async def test_root_inside_is_nobody_outside_and_setuid_gives_nothing(room: Sandbox, tmp_path: Path) -> None:
    mark = f"sleep\0003{os.getpid()}.25"
    began = asyncio.create_task(room.run(mark.split("\0")))
    await until(lambda: bool(left(f"--\0{mark}") and set(left(mark)) - set(left("bwrap"))))
    [own] = set(left(mark)) - set(left("bwrap"))
    assert Path(own).stat().st_uid == os.getuid() or Path(own).stat().st_uid >= 0x10000000
    assert Path(own).stat().st_uid != 0
    began.cancel()
    status = await sh(room, "grep -E 'NoNewPrivs|CapEff' /proc/self/status; cp /bin/sh s; chmod 4755 s; ./s -c 'id -u'")
    words = status.output.split()
    assert words[3] == "1"
    held = int(words[1], 16)
    assert held & (1 << 21 | 1 << 12 | 1 << 16 | 1 << 19 | 1 << 27) == 0, (
        "no sys_admin, net_admin, module, ptrace, mknod"
    )


async def test_a_room_that_is_closed_while_a_cancelled_command_is_being_killed_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def slowly(*work: Any) -> Any:
        await asyncio.sleep(0.3)
        return await in_time(*work)

    room = await open_sandbox(made())
    before = children()
    began = asyncio.create_task(room.run(["sleep", f"3{os.getpid()}.75"]))
    await until(lambda: bool(left(f"--\0sleep\0003{os.getpid()}.75")))
    monkeypatch.setattr(execution, "in_time", slowly)
    began.cancel()
    await asyncio.sleep(0.1)
    assert children() - before, "it is being killed"
    await room.close()
    assert children() - before == set(), "none is left, and none that nobody has waited for"
    with pytest.raises(asyncio.CancelledError):
        await began


async def test_proc_shows_nothing_of_the_host_and_takes_no_orders(room: Sandbox) -> None:
    tried = await sh(
        room,
        "ls -d /proc/[0-9]* | wc -l; ls -l /proc/1/root /proc/1/cwd 2>&1 | grep -c work;"
        "(echo h > /proc/sysrq-trigger) 2>&1; (echo 1 > /proc/sys/kernel/panic) 2>&1; (echo x > /proc/sys/kernel/core_pattern) 2>&1;"
        "cat /proc/kcore 2>&1 | head -c 10; (echo -17 > /proc/1/oom_adj) 2>&1; dd if=/proc/1/mem count=1 2>&1 | tail -1;"
        "mknod d b 8 0 2>&1; cat /dev/mem /dev/sda /dev/vda 2>&1",
    )
    lines = tried.output.splitlines()
    assert int(lines[0]) <= 6
    assert lines[1] == "0"
    assert (
        sum(
            "enied" in line or "not permitted" in line or "No such file" in line or "ead-only" in line for line in lines
        )
        >= 6
    )


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_ALG", "AF_PACKET"])
async def test_no_socket_that_a_network_of_ones_own_does_not_hold_back(room: Sandbox, family: str) -> None:
    ran = await room.run(["python3", "-c", f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)"])
    assert "PermissionError" in ran.output or "ModuleNotFoundError" in ran.output


async def test_no_namespaces_of_its_own(room: Sandbox) -> None:
    assert (
        "not permitted"
        in (await sh(room, "unshare -U true; unshare -m true; nsenter -t 1 -m true; bwrap --ro-bind / / true")).output
    )


# --- the machine for itself ---


async def test_a_fork_bomb_goes_off_in_its_own_room(room: Sandbox) -> None:
    mark = f"bomb{os.getpid()}"
    await sh(room, f"{mark}() {{ {mark} | {mark} & }}; {mark}; sleep 0.5", seconds=3)
    assert left(mark) == []
    assert (await sh(room, "echo alive")).output == "alive\n"


async def test_memory_is_limited(room: Sandbox) -> None:
    ran = await room.run(["python3", "-c", "x = bytearray(400 << 20); print('had it')"])
    assert (ran.ok, "had it" in ran.output) == (False, False)
    many = "for i in 1 2 3 4 5 6; do python3 -c 'x = bytearray(60 << 20); import time; time.sleep(3); print(\"had it\")' & done; wait"
    assert (await sh(room, many)).output.splitlines().count("had it") < 6, "the room as a whole"


async def test_files_and_processor_are_limited(room: Sandbox) -> None:
    full = await sh(
        room,
        "head -c 100M /dev/zero > big; ls -l big | cut -d' ' -f5; for i in $(seq 40); do head -c 2M /dev/zero > f$i; done",
    )
    assert "No space left" in full.output or "File size limit" in full.output
    assert "No space left" in (await sh(room, "head -c 60M /dev/zero > /dev/shm/x")).output
    await sh(room, "rm -f big f*")
    busy = await open_sandbox(made(limits=replace(LIMITS, seconds=60, cpu=1)))
    try:
        assert (await sh(busy, "while :; do :; done")).code == 128 + 9
    finally:
        await busy.close()


async def test_endless_output_is_cut_with_its_head_and_tail_kept(room: Sandbox) -> None:
    endless = await sh(room, "echo begin; yes")
    assert (endless.code, endless.stopped) == (None, "stopped after printing more than 1048576 bytes")
    assert endless.output.startswith("begin\ny\n")
    assert len(endless.output) < 70_000
    long = await sh(room, "echo begin; seq 100000; echo end")
    assert (long.code, long.output[:6], long.output[-4:]) == (0, "begin\n", "end\n")
    assert "bytes left out" in long.output
    shell = await room.shell()
    assert "more than" in (await shell.run("yes")).stopped
    assert (await shell.run("echo alive")).output.endswith("alive\n")


async def test_nothing_survives_the_close(room: Sandbox) -> None:
    mark = f"3{os.getpid()}.75"
    shell = await room.shell()
    await shell.run(f"(trap '' TERM HUP INT; setsid sleep {mark}) & disown")
    waiting = asyncio.create_task(sh(room, f"sleep {mark}"))
    await until(lambda: len(left(mark)) >= 3)
    await room.close()
    with pytest.raises(NoSandbox, match="closed"):
        await waiting
    assert left(mark) == []
    with pytest.raises(NoSandbox, match="closed"):
        await sh(room, "true")
    await room.close()


async def test_it_ends_when_we_are_killed(tmp_path: Path) -> None:
    mark = f"3{os.getpid()}.125"
    program = f"""
import asyncio
from openclaw_rl.envs.sandbox import *
async def main():
    limits = SandboxLimits(seconds=60, cpu=9, memory=1 << 28, processes=16, disk=1 << 20, output=9999)
    room = await open_sandbox(SandboxSettings(limits=limits, driver="bubblewrap", root=None))
    shell = await room.shell()
    await shell.run("sleep {mark} &")
    await room.run(["sleep", "{mark}"])
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    await until(lambda: len(set(left(f"sleep\0{mark}")) - set(left("bwrap"))) >= 2)
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    await until(lambda: left(f"sleep\0{mark}") == [])
    assert left(f"sleep\0{mark}") == []


async def test_several_users_live_in_a_room_for_many() -> None:
    if os.getuid() != 0:
        with pytest.raises(NoSandbox, match="run as root"):
            await open_sandbox(made(users="many"))
        return
    room = await open_sandbox(made(users="many"))
    try:
        seen = await sh(
            room, "useradd -m bob && su bob -c 'id -un; cat /etc/shadow; touch /home/bob/x' ; stat -c %U /home/bob/x"
        )
        assert seen.output.splitlines() == ["bob", "cat: /etc/shadow: Permission denied", "bob"]
    finally:
        await room.close()


async def test_a_missing_program_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == "bwrap" else name)
    with pytest.raises(NoSandbox, match="bubblewrap is not installed; apt-get install bubblewrap"):
        await open_sandbox(made())


async def test_a_folder_that_is_no_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSandbox, match="has no bin/sh; make one: mmdebstrap"):
        await open_sandbox(made(root=str(tmp_path)))


TOOL = """#!%s
# Stands for podman: a "container" is a folder of ours, whose commands run here
import os, sys
verb, *rest = sys.argv[1:]
if verb == "run":
    open(%r, "a").write(" ".join(sys.argv[1:]) + "\\n")
    os.execvp(rest[-1], rest[-1:])
if verb == "exec":
    env = {"PATH": os.environ["PATH"]}
    while rest[0].startswith("--"):
        option = rest.pop(0)
        if option == "--env":
            name, _, value = rest.pop(0).partition("=")
            env[name] = value
        elif option == "--workdir":
            rest.pop(0)
    os.execvpe(rest[1], rest[1:], env)
"""


async def test_a_container_driver_keeps_the_same_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, said = tmp_path / "podman", tmp_path / "said"
    tool.write_text(TOOL % (sys.executable, str(said)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    room = await open_sandbox(made(driver="podman", root="debian:stable"))
    try:
        for wanted in (
            "--network none",
            f"--memory {128 << 20}",
            "--pids-limit 32",
            "--cap-drop ALL",
            "debian:stable cat",
        ):
            assert wanted in said.read_text()
        mark = f"3{os.getpid()}.0625"
        ran = await sh(room, f"echo out; sleep {mark} & exit 3")
        assert (ran.code, ran.output) == (3, "out\n")
        assert left(mark) == []
        assert (await sh(room, f"sleep {mark}", seconds=0.3)).stopped == "stopped after 0.3 s"
        assert left(mark) == []
        await room.write(f"{tmp_path}/a/b", b"\0\1data")
        assert await room.read(f"{tmp_path}/a/b", most=99) == b"\0\1data"
        with pytest.raises(FileNotFoundError):
            await room.read(f"{tmp_path}/none", most=9)
        with pytest.raises(NoSandbox, match="driver = bubblewrap"):
            await room.listen(1)
    finally:
        await room.close()


async def test_a_container_driver_that_is_missing_or_has_no_image_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(NoSandbox, match="podman is not installed"):
        await open_sandbox(made(driver="podman", root="x"))
    monkeypatch.setattr(shutil, "which", lambda name, path=None: name)
    with pytest.raises(NoSandbox, match="docker needs an image"):
        await open_sandbox(made(driver="docker"))


def a_system(folder: Path) -> Path:
    """A few programs of this machine with the libraries that they load, as a system of its own."""
    tools = [shutil.which(name) for name in ("bash", "sh", "cat", "ls", "rm", "mkdir", "chmod", "dirname", "setsid")]
    loaded = subprocess.run(["ldd", *filter(None, tools)], capture_output=True, text=True, check=True).stdout
    libraries = set(re.findall(r"(/\S+) \(0x", loaded))
    for source in (*filter(None, tools), *libraries):
        target = folder / source.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    for place in ("bin", "proc", "dev", "root", "tmp"):
        (folder / place).mkdir(exist_ok=True)
    if not (folder / "bin" / "sh").exists():
        (folder / "bin" / "sh").symlink_to(shutil.which("sh") or "")
    (folder / "root" / "note").write_text("of the system\n")
    return folder


async def test_a_system_of_its_own_is_seen_whole_and_never_changed(tmp_path: Path) -> None:
    system = a_system(tmp_path / "system")
    try:
        room = await open_sandbox(made(root=str(system)))
    except NoSandbox as error:
        pytest.skip(str(error))
    try:
        seen = await sh(room, "cat note; echo changed > note; rm /bin/cat /usr/bin/cat; ls -d /etc/passwd /usr/share")
        assert seen.output.startswith("of the system\n")
        assert "No such file" in seen.output, "nothing of this machine's own system"
        assert (await (await room.shell()).run("read -r line < note; echo $line")).output == "changed\n"
    finally:
        await room.close()
    assert (system / "root" / "note").read_text() == "of the system\n"
    assert any((system / place).exists() for place in ("bin/cat", "usr/bin/cat"))
