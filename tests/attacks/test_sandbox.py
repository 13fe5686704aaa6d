"""Programs that want out of the sandbox, or the machine for themselves."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sandboxes import needs_sandbox

from openclaw_rl import config
from openclaw_rl.app import doctor
from openclaw_rl.envs import sandbox
from openclaw_rl.envs.sandbox import cgroups, programs
from openclaw_rl.errors import NoSandbox
from openclaw_rl.evals import models

pytestmark = pytest.mark.slow
apart = needs_sandbox


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without bubblewrap."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    programs._bubblewrap.cache_clear()
    yield
    programs._bubblewrap.cache_clear()


# --- out ---


@apart
async def test_nothing_of_the_host_is_there_but_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("x")
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    places = [
        "/etc",
        "/etc/passwd",
        "/proc",
        "/sys",
        "/tmp",
        "/var",
        "/bin/sh",
        "/usr/bin/env",
        str(tmp_path),
        str(Path.cwd()),
    ]
    places += [str(Path.home() / ".bashrc"), str(Path.home() / ".ssh"), "/dev/shm", "/dev/tty", *_packages()]
    ran = await sandbox.run(f"import os; print([p for p in {places!r} if os.path.exists(p)], *sorted(os.environ))")
    assert ran.output.split("\n")[0].split("] ")[0] == "["
    assert "SECRET_OF_THE_HOST" not in ran.output


def _packages() -> list[str]:
    """Packages of this environment, and of the interpreter below it."""
    below = Path(sys.base_prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages", "pip")
    return [str(Path(pytest.__file__)), str(below), str(Path(sandbox.__file__))]


@apart
async def test_programs_see_their_own_processes_only_and_are_not_root() -> None:
    program = "import os; print(os.getpid() < 5, os.getppid() < 5, os.geteuid() != 0, os.getgroups())\n"
    hosts = [os.getpid(), *(pid for pid in [os.getppid()] if pid > 1)]  # 1 is in every sandbox
    program += f"for pid in {hosts}:\n  try: os.kill(pid, 0)\n  except ProcessLookupError: print('none')"
    assert (await sandbox.run(program)).output == "True True True []\n" + "none\n" * len(hosts)


@apart
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_VSOCK", "AF_ALG"])
async def test_no_socket_of_any_kind_is_opened(family: str) -> None:
    ran = await sandbox.run(f"import socket; socket.socket(socket.{family}, socket.SOCK_STREAM)")
    assert "PermissionError" in ran.output


@apart
async def test_nothing_can_be_written_but_in_a_small_folder_that_is_thrown_away(tmp_path: Path) -> None:
    tried = [
        "/x",
        "/dev/x",
        "/root/x",
        f"{tmp_path}/x",
        sys.executable,
        str(Path(os.__file__).parent / "x.py"),
        os.__file__,
    ]
    program = f"""
for path in {tried!r}:
    try: open(path, 'a').write('x'); print('wrote', path)
    except OSError: pass
open('own.txt', 'w').write('x'); print(open('own.txt').read())
for number in range(100):
    open(str(number), 'wb').write(bytes(1 << 20))
"""
    ran = await sandbox.run(program)
    assert "wrote" not in ran.output
    assert "No space left on device" in ran.output
    assert not list(tmp_path.iterdir())
    assert (await sandbox.run("import os; print(os.listdir('.'))")).output == "[]\n"


@apart
async def test_what_gets_round_namespaces_and_limits_is_refused() -> None:
    program = """
import ctypes, errno
c = ctypes.CDLL(None, use_errno=True)
calls = {"unshare": (0x10000000,), "shmget": (0, 1 << 30, 0o1600), "semget": (0, 1, 0o1600), "msgget": (0, 0o1600),
         "memfd_create": (b"x", 0), "ptrace": (0, 0, 0, 0), "setns": (0, 0), "setuid": (0,), "chroot": (b"/",)}
for name, arguments in calls.items():
    if getattr(c, name)(*arguments) != -1 or ctypes.get_errno() != errno.EPERM:
        print(name, "is open")
"""
    ran = await sandbox.run(program)
    assert (ran.code, ran.output) == (0, "")


def test_the_filter_is_made_for_processors_whose_calls_are_known() -> None:
    # 6 to check processor and call set, 2 for each of 19 calls and for clone3, 4 for clone, 1 to let pass
    assert len(cgroups.program("x86_64")) == len(cgroups.program("aarch64")) == 8 * (6 + 2 * 19 + 2 + 4 + 1)
    with pytest.raises(NoSandbox, match="not mips"):
        cgroups.program("mips")


# --- the machine for itself ---


@apart
async def test_endless_output_is_cut_and_costs_us_no_memory() -> None:
    tracemalloc.start()
    ran = await sandbox.run("while True: print('x' * 100_000)", limits=replace(programs.LIMITS, seconds=30, cpu=30))
    assert (ran.code, ran.output) == (None, "stopped after printing more than 1048576 bytes")
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 8 << 20, "bytes that Python had allocated at once: the megabyte that is kept, and copies of it"
    whole = await sandbox.run("print('x' * 100_000 + 'end')")
    assert (whole.code, whole.output) == (0, "x" * 1996 + "end\n")


@apart
async def test_a_fork_bomb_goes_off_in_its_own_room() -> None:
    bomb = "import os\nwhile True: os.fork()"
    assert "BlockingIOError" in (await sandbox.run(bomb)).output, "not even one"
    await sandbox.run(bomb, limits=replace(programs.LIMITS, seconds=5.125, processes=16))
    assert left("'seconds': 5.125") == []


@apart
@pytest.mark.parametrize("ends", ["", "time.sleep(60)"], ids=["by itself", "by us"])
async def test_no_process_is_left_when_it_returns(ends: str) -> None:
    program = f"""
import os, signal, time
for number in range(3):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for fd in range(3):
            os.close(fd)
        time.sleep(60)
os.close(1), os.close(2)
{ends}
"""
    seconds = 2.8125 if ends else 20.8125
    ran = await sandbox.run(program, limits=replace(programs.LIMITS, seconds=seconds, processes=8))
    assert ran.code == (None if ends else 0)
    assert left(f"'seconds': {seconds}") == []


def left(mark: str) -> list[str]:
    """Processes of this machine with this in their command."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in place.read_bytes():
                found.append(str(place))
        except OSError:  # it ended while we looked
            continue
    return found


@apart
async def test_a_program_whose_caller_has_gone_is_ended() -> None:
    task = asyncio.create_task(
        sandbox.run("import time; time.sleep(60)", limits=replace(programs.LIMITS, seconds=59.5))
    )
    while not left("'seconds': 59.5"):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left("'seconds': 59.5") == []


@apart
async def test_memory_processor_and_open_files_are_limited() -> None:
    assert "MemoryError" in (await sandbox.run("x = bytearray(1 << 30)")).output
    assert "Too many open files" in (await sandbox.run("import os\nwhile True: os.dup(0)")).output
    busy = await sandbox.run("while True: pass", limits=replace(programs.LIMITS, cpu=1, seconds=60))
    assert busy.code == 128 + 9, "killed when its processor time was up"


# --- without bubblewrap ---


@pytest.mark.usefixtures("bare")
async def test_without_bubblewrap_nothing_runs_unless_told_to() -> None:
    with pytest.raises(NoSandbox, match="apt-get install bubblewrap"):
        await sandbox.run("print(1)")
    assert sandbox.isolation(unsafe=True) == "none"
    assert (await sandbox.run("print(1)", unsafe=True)).output == "1\n"


@pytest.mark.usefixtures("bare")
async def test_an_evaluation_with_programs_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(NoSandbox, match="--unsafe-no-sandbox"):
        await models.evaluate(
            config.Config(),
            "http://127.0.0.1:9/v1",
            against=None,
            seed=0,
            temperature=0.0,
            key_env=None,
            unsafe=False,
            done=lambda _: None,
        )


@pytest.mark.usefixtures("bare")
def test_doctor_names_what_is_missing_and_how_to_get_it() -> None:
    found = {one.check: one for one in doctor.examine(config.Config())}["sandbox"]
    assert (found.state, "apt-get install bubblewrap" in found.remedy) == ("warning", True)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("import socket; socket.create_connection(('127.0.0.1', 9), 1)", "refused here"),
        ("open('/tmp/written-by-a-model', 'w')", "refused here"),
        ("import os; os.system('true')", "refused here"),
        ("import os; os.remove('own.txt')", "refused here"),
        ("import subprocess; subprocess.run(['true'])", "refused here"),
        ("while True: print('x' * 100_000)", "stopped after printing"),
        ("import time; time.sleep(60)", "stopped after 0.6 s"),
    ],
)
async def test_told_to_run_all_the_same_the_interpreter_stops_accidents(program: str, word: str) -> None:
    seconds = 0.6 if "0.6 s" in word else 20.0  # that an interpreter takes to begin is not what is asked here
    ran = await sandbox.run(program, limits=replace(programs.LIMITS, seconds=seconds), unsafe=True)
    assert not ran.ok
    assert word in ran.output
    assert not Path("/tmp/written-by-a-model").exists()
