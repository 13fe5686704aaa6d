"""What a patch does to be paid without a repair is worth -1, and never makes an episode fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from cheats import MODULES
from sandboxes import needs_sandbox
from test_swe_env import DONE, TASK, bench, call, make_env, typed  # noqa: F401

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_sandbox]


@pytest.mark.parametrize("name", MODULES)
async def test_a_cheat_in_a_patch_is_paid_minus_1(bench: Path, name: str) -> None:  # noqa: F811
    env = make_env(bench)
    await env.reset(TASK, seed=0)
    await env.step(typed(f"cat > shapes.py <<'END_OF_MODULE'\n{MODULES[name]}END_OF_MODULE"))
    seen = await env.step(DONE)
    assert (seen.reward, seen.messages[-1].content[:14]) == (-1.0, "[not resolved:")
    await env.close()


@pytest.mark.parametrize("name", ["json", "pytest", "hmac", "pluggy", "unittest", "ctypes"])
async def test_a_module_that_hides_one_of_the_runners_own_breaks_no_episode(bench: Path, name: str) -> None:  # noqa: F811
    env = make_env(bench)
    await env.reset(TASK, seed=0)
    await env.step(typed(f"echo 'raise SystemExit(0)' > {name}.py"))
    assert (await env.step(DONE)).reward == -1.0
    await env.close()


async def test_an_agent_that_removes_its_repository_is_paid_minus_1(bench: Path) -> None:  # noqa: F811
    env = make_env(bench, form="tools")
    await env.reset(TASK, seed=0)
    await env.step(call("bash", command="cd / && rm -rf /testbed"))
    for tool, arguments in (("search", {"pattern": "a"}), ("test", {"tests": ""})):
        assert not (await env.step(call(tool, **arguments))).done
    assert (await env.step(DONE)).reward == -1.0
    await env.close()
