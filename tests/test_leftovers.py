"""Nothing that environments make for themselves stays on a machine, also where a process is killed or cancelled."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner
from sandboxes import SETTINGS, needs_sandbox

from openclaw_rl.cli import cli
from openclaw_rl.envs import leftovers
from openclaw_rl.envs.gui.by_selenium import _environment
from openclaw_rl.envs.sandbox import cgroups, open_sandbox, terminal
from openclaw_rl.errors import NoSandbox

pytestmark = pytest.mark.anyio


def gone() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_folder_is_abandoned_where_no_process_of_its_id_can_have_made_it(tmp_path: Path) -> None:
    names = [f"x-{gone()}-a", f"x-{os.getpid()}-b", f"x-{os.getpid()}-c", "x-plain", "x-words-d", "y-1-e"]
    for name in names:
        (tmp_path / name).mkdir()
    os.utime(tmp_path / names[2], (1e9, 1e9))  # years before this process began: its id is used again
    assert sorted(each.name for each in cgroups.abandoned(tmp_path, "x-")) == sorted([names[0], names[2]])


def test_the_first_group_of_a_process_removes_those_of_killed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    if not cgroups._hierarchies():
        pytest.skip("control groups cannot be made here")
    dead = gone()
    left = [hierarchy.parent / f"openclaw-rl-{dead}-a" for hierarchy in cgroups._hierarchies()]
    for folder in left:
        folder.mkdir()
    cgroups._sweep_once.cache_clear()
    group = cgroups.make_group(memory=1 << 28, processes=64)
    assert not any(folder.exists() for folder in left)
    assert all(folder.exists() for folder in group.folders)
    group.close()
    assert not any(folder.exists() for folder in group.folders)


@needs_sandbox
async def test_a_shell_that_is_given_up_before_it_began_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await open_sandbox(SETTINGS)
    before = children()

    async def fails(_: object) -> NoReturn:
        raise NoSandbox("bubblewrap did not begin within 60 s")

    monkeypatch.setattr(terminal, "entered", fails)
    with pytest.raises(NoSandbox, match="did not begin"):
        await sandbox.shell()
    assert children() == before, "it would wait for the word to go on for ever"
    await sandbox.close()


def children() -> set[str]:
    """Processes that this one has begun and that have not ended."""
    found = {pid for place in Path("/proc/self/task").glob("*/children") for pid in place.read_text().split()}
    return {pid for pid in found if Path("/proc", pid, "cmdline").read_bytes()}


def test_folders_of_killed_browsers_are_removed_by_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"openclaw-rl-gui-{gone()}-abc"
    (left / "org.chromium.Chromium.x").mkdir(parents=True)
    first, second = leftovers.browser_folder(), leftovers.browser_folder()
    assert sorted(tmp_path.iterdir()) == sorted([first, second])
    assert _environment(first / "chromium")["TMPDIR"] == str(first), "chromedriver's own folders lie there"


def test_a_command_removes_what_environments_keep_and_says_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("OPENCLAW_RL_CACHE", str(tmp_path / "cache"))
    kept, other = tmp_path / "cache" / "swe" / "sqlparse-0.5.5-abc", tmp_path / "cache" / "judges"
    for folder in (kept / "bin", other, tmp_path / "tmp"):
        folder.mkdir(parents=True)
    (kept / "bin" / "python").write_bytes(b"\0" * 3_000_000)
    done = CliRunner().invoke(cli, ["envs", "clear"])
    assert done.output == f"removed {kept.parent} (3 MB)\n"
    assert (kept.exists(), other.exists()) == (False, True)
    assert CliRunner().invoke(cli, ["envs", "clear"]).output == f"nothing to remove in {tmp_path / 'cache'}\n"
