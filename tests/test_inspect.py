"""Inspect's own runner, its model provider and a scorer, against a real server: sessions named, samples paid."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from sandboxes import needs_sandbox

from openclaw_rl.testing import running_app, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
FOLDER = Path(__file__).parents[1] / "integrations" / "inspect"


@needs_sandbox
async def test_each_sample_is_a_session_in_a_sandbox_and_its_epochs_are_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect_ai = pytest.importorskip("inspect_ai", reason="pip install inspect-ai")
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import Generate, TaskState, generate, solver
    from inspect_ai.util import sandbox

    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import openclaw_rl_inspect  # type: ignore[import-not-found]  # noqa: F401

    seen: list[Any] = []

    @solver
    def look() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            await sandbox().write_file("note.txt", "here")
            seen.append(await sandbox().exec(["sh", "-c", "cat note.txt; echo wrong >&2; exit 3"]))
            seen.append(await sandbox().read_file("note.txt"))
            return state

        return solve

    keys = tmp_path / "keys.toml"
    keys.write_text('"env:inspect" = "key-of-inspect-1"\n')
    keys.chmod(0o600)
    async with running_app(tmp_path / "run", f"serve.keys_file={keys}", 'policy.options={reply="four"}') as run:
        url = str(run.client.base_url).rstrip("/") + "/v1"
        for name in ("OPENCLAW_URL", "OPENAI_BASE_URL"):
            monkeypatch.setenv(name, url)
        for name in ("OPENCLAW_API_KEY", "OPENAI_API_KEY"):
            monkeypatch.setenv(name, "key-of-inspect-1")
        samples = [Sample(input="2 + 2?", target="four"), Sample(input="2 + 3?", target="five")]
        task = inspect_ai.Task(dataset=samples, solver=[look(), generate()], scorer=includes(), sandbox="bubblewrap")
        [log] = await inspect_ai.eval_async(task, model="openai/any", epochs=2, log_dir=str(tmp_path / "logs"))
        assert log.status == "success", log.error
        await until(lambda: len(run.ledger.rows("SELECT score FROM session_rewards")) == 4)
        paid = run.ledger.rows("SELECT score FROM session_rewards ORDER BY score")
        turns = run.ledger.rows("SELECT session, grp, user FROM turns WHERE session IS NOT NULL")
    assert [row["score"] for row in paid] == [-1.0, -1.0, 1.0, 1.0]
    assert {row["user"] for row in turns} == {"env:inspect"}
    assert (len({row["session"] for row in turns}), len({row["grp"] for row in turns})) == (4, 2)
    first = seen[0]
    assert (first.returncode, first.stdout, first.stderr) == (3, "here", "wrong\n")
    assert seen[1] == "here"
