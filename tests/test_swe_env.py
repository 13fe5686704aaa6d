"""The SWE environment: a small repository with a failing test, repaired in a real sandbox by real commands."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sandboxes import SETTINGS, needs_sandbox

from openclaw_rl.cli import cli
from openclaw_rl.envs.audit import audit_task
from openclaw_rl.envs.episodes import run_episode
from openclaw_rl.envs.play.programs import SupportsAgents
from openclaw_rl.envs.swe import making
from openclaw_rl.envs.swe.env import SweEnv, swe
from openclaw_rl.envs.swe.instances import SuiteSetup, read_instances
from openclaw_rl.envs.swe.making import Candidate, SweMaker, code_paths
from openclaw_rl.envs.swe.mutations import LARGEST, changes, is_test, mutations, refusal
from openclaw_rl.envs.swe.suites import Graded, Verdicts, told
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.ports import Env, SupportsOutcome, SupportsTaskSets, TurnReply
from openclaw_rl.types import Message, Prompt, ToolCall

pytestmark = pytest.mark.anyio

WRONG = "def area(width, height):\n    return width + height\n\n\ndef half(number):\n    return number / 2\n"
RIGHT = WRONG.replace("width + height", "width * height")
TESTS = "from shapes import area, half\n\n\ndef test_half():\n    assert half(4) == 2\n"
MORE = (
    f"{TESTS}\n\ndef test_area():\n    assert area(2, 3) == 6\n\n\ndef test_a_flat_one():\n    assert area(5, 0) == 0\n"
)
FILES = {"shapes.py": WRONG, "tests/test_shapes.py": TESTS, "README.md": "Shapes.\n"}
FAILING = ("tests/test_shapes.py::test_area", "tests/test_shapes.py::test_a_flat_one")
TASK = "tiny__shapes/tiny__shapes-1"
SETUP = {"interpreter": sys.executable, "pytest": ["--disable-plugin-autoload"]}
FIX = "sed -i 's/width + height/width * height/' shapes.py"


def git(folder: Path, *words: str) -> str:
    line = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@localhost", *words]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as SWE_BENCH_PATH names it: one instance, its repository as a clone, and this Python for its tests."""
    folder = tmp_path_factory.mktemp("bench")
    clone = folder / "repos" / "tiny__shapes"
    write(clone, FILES)
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "base")
    base = git(clone, "rev-parse", "HEAD").strip()
    patches = {}
    for name, path, text in (("patch", "shapes.py", RIGHT), ("test_patch", "tests/test_shapes.py", MORE)):
        write(clone, {path: text})
        patches[name] = git(clone, "diff")
        git(clone, "checkout", "-q", ".")
    row = {
        "instance_id": "tiny__shapes-1",
        "repo": "tiny/shapes",
        "base_commit": base,
        "problem_statement": "The area of a rectangle is wrong.",
        "FAIL_TO_PASS": json.dumps(FAILING),
        "PASS_TO_PASS": ["tests/test_shapes.py::test_half"],
        "split": "train",
        "hints_text": "a field of SWE-bench that nobody needs",
        **patches,
    }
    (folder / "instances.json").write_text(json.dumps([row]))
    (folder / "environments.json").write_text(json.dumps({"tiny/shapes": SETUP}))
    return folder


def make_env(folder: Path | None, **given: Any) -> SweEnv:
    names: dict[str, Any] = {"form": "text", "levels": (), "output_chars": 2000, "cache_dir": Path("/nonexistent")}
    return swe(**{"swe_bench_path": folder, "sandbox": SETTINGS, **names, **given})


def typed(command: str) -> Message:
    return Message(role="assistant", content=f"```bash\n{command}\n```")


def call(tool: str, **arguments: str) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="c1", name=tool, arguments=json.dumps(arguments)),))


DONE = Message(role="assistant", content="done")


# --- what there is to read


def test_it_keeps_the_ports_and_reads_rows_as_swe_bench_writes_them(bench: Path) -> None:
    env = make_env(bench)
    for port in (Env, SupportsOutcome, SupportsTaskSets, SupportsAgents):
        assert isinstance(env, port)
    assert (env.tasks(), env.held_out()) == ([TASK], [])
    assert (env.level(TASK), env.instruction(TASK)) == ("tiny__shapes", "The area of a rectangle is wrong.")
    assert read_instances(bench)[0].failing == FAILING, "a list that is JSON text is read as one"


def test_rows_may_stand_one_to_a_line_and_without_a_split_the_id_decides(bench: Path, tmp_path: Path) -> None:
    row = json.loads((bench / "instances.json").read_text())[0]
    del row["split"]
    row["problem_statement"] = "A line\u2028and another: both in one row."
    lines = [json.dumps({**row, "instance_id": f"tiny-{number}"}, ensure_ascii=False) for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    env = make_env(tmp_path / "rows.jsonl")
    assert len(env.tasks()) + len(env.held_out()) == 40
    assert 4 <= len(env.held_out()) <= 20


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("[", "has no valid instances: Expecting value"),
        ('[{"instance_id": "a"}]', "has no valid instances: repo: Field required"),
    ],
)
def test_a_file_that_is_no_list_of_rows_is_refused_with_the_field(tmp_path: Path, rows: str, said: str) -> None:
    (tmp_path / "instances.json").write_text(rows)
    with pytest.raises(ConfigError, match=said):
        make_env(tmp_path)


def test_what_is_missing_or_misspelt_is_named_with_the_remedy(bench: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="env.swe_bench_path is not set; set SWE_BENCH_PATH to a folder"):
        make_env(None)
    with pytest.raises(ConfigError, match=r"contains neither instances.json nor .* envs make-swe"):
        make_env(tmp_path)
    with pytest.raises(ConfigError, match="no level 'x' in swe; known: tiny__shapes"):
        make_env(bench, levels=("x",))
    (tmp_path / "instances.json").write_bytes((bench / "instances.json").read_bytes())
    (tmp_path / "environments.json").write_text('{"tiny/shapes": {"interpeter": "x"}}')
    with pytest.raises(ConfigError, match="each repository may have: interpreter, python, packages, pytest"):
        make_env(tmp_path)


async def test_an_instance_without_its_repository_fails_and_says_where_it_was_looked_for(
    bench: Path, tmp_path: Path
) -> None:
    (tmp_path / "instances.json").write_bytes((bench / "instances.json").read_bytes())
    with pytest.raises(EnvFailed, match=r"neither a mirror .*repos/tiny__shapes nor an archive .*git clone --mirror"):
        await make_env(tmp_path).reset(TASK, seed=0)


# --- the gate


def patch_of(path: str, *, mode: str = "", body: str = "@@ -1 +1 @@\n-a\n+b\n") -> str:
    return f"diff --git a/{path} b/{path}\n{mode}--- a/{path}\n+++ b/{path}\n{body}"


def test_the_files_of_a_patch_are_read_and_lines_that_look_like_a_head_are_not() -> None:
    body = "@@ -1,2 +1,2 @@\n--- a/tests/x.py\n-diff --git a/y b/y\n+b\n"
    assert [each.path for each in changes(patch_of("src/a b.py", body=body) + patch_of("c.py"))] == [
        "src/a b.py",
        "c.py",
    ]


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (patch_of("src/a.py"), ""),
        (patch_of("contest.py"), ""),
        (patch_of("tests/data/a.sql"), "tests/data/a.sql is a test"),
        (patch_of("src/pkg/test_a.py"), "src/pkg/test_a.py is a test"),
        (patch_of("staged.py"), "staged.py is a test"),
        (patch_of("conftest.py"), "conftest.py says how tests are run"),
        (patch_of("pyproject.toml"), "pyproject.toml says how tests are run"),
        (patch_of("setup.cfg"), ""),
        (patch_of("src/evil.pth"), "src/evil.pth says how tests are run"),
        (patch_of("../x.py"), "../x.py is outside of the repository"),
        (patch_of("a", mode="new file mode 120000\n"), "a is no plain text file"),
        ("diff --git a/x.so b/x.so\nBinary files a/x.so and b/x.so differ\n", "x.so is no plain text file"),
        ("".join(patch_of(f"m{number}.py") for number in range(51)), "the patch changes 51 files, more than 50"),
        (patch_of("a.py", body="+" * LARGEST), "the patch is larger than 256 KiB"),
    ],
)
def test_the_gate_lets_code_through_and_nothing_that_decides_on_itself(patch: str, why: str) -> None:
    assert refusal(patch, tests={"staged.py"}, allowed={"setup.cfg"}) == why


def test_a_test_is_known_by_its_name_or_its_folder() -> None:
    assert [is_test(path) for path in ("a_test.py", "Tests/x", "attest.py", "src/testing/a.py", "a/b.py")] == [
        *(True, True),
        False,
        True,
        False,
    ]


# --- verdicts


def test_a_name_that_was_cut_at_a_space_means_all_tests_that_begin_so() -> None:
    found = Verdicts(outcomes={"t.py::a[x y]": "passed", "t.py::a[x z]": "failed", "t.py::b[1 2]": "passed"}, seconds=1)
    assert [found.passes(name) for name in ("t.py::a[x", "t.py::b[1", "t.py::c")] == [False, True, False]
    assert not Verdicts(outcomes={"": "failed"}, seconds=1).passes("t.py::a"), "nothing could be collected"
    assert told(found) == "FAILED t.py::a[x z]\n[2 passed, 1 failed in 1.0 s]"


def test_the_score_is_all_or_nothing_and_in_part_only_where_that_is_wanted() -> None:
    half = Graded(fixed=1, failing=2, kept=9, passing=10)
    assert (half.score(partial=False), half.score(partial=True)) == (0.0, 0.45)
    assert Graded(fixed=2, failing=2, kept=10, passing=10).score(partial=False) == 1.0
    assert Graded(fixed=0, failing=2, kept=10, passing=10).score(partial=True) == 0.0


# --- episodes


@pytest.mark.slow
@needs_sandbox
async def test_the_authors_solution_is_worth_1_and_doing_nothing_minus_1(bench: Path) -> None:
    for form in ("text", "tools"):
        found = await audit_task(lambda form=form: make_env(bench, form=form), TASK)  # type: ignore[misc]
        assert (found.gold, found.nothing, found.fault) == (1.0, -1.0, "")


@pytest.mark.slow
@needs_sandbox
async def test_patches_whose_last_line_end_was_stripped_still_apply(bench: Path, tmp_path: Path) -> None:
    row = json.loads((bench / "instances.json").read_text())[0]
    for name in ("patch", "test_patch"):
        row[name] = row[name].strip()
    (tmp_path / "instances.json").write_text(json.dumps([row]))
    for name in ("repos", "environments.json"):
        (tmp_path / name).symlink_to(bench / name)
    found = await audit_task(lambda: make_env(tmp_path), TASK)
    assert (found.gold, found.nothing) == (1.0, -1.0)


@pytest.mark.slow
@needs_sandbox
async def test_a_step_shows_what_is_changed_and_what_the_linter_has_against_it(bench: Path) -> None:
    env = make_env(bench)
    prompt = await env.reset(TASK, seed=0)
    assert "/opt/bin/run-tests" in prompt.messages[0].content
    seen = await env.step(typed("echo 'x = undefined_name' >> shapes.py"))
    assert not seen.done
    text = seen.messages[0].content
    assert "[exit code 0, " in text
    assert "[diff]\ndiff --git a/shapes.py b/shapes.py\n" in text
    assert "+x = undefined_name" in text
    assert "[lint]\nshapes.py:7:5: F821 Undefined name `undefined_name`" in text
    assert "[diff]" not in (await env.step(typed("/opt/bin/run-tests"))).messages[0].content, "nothing new was changed"
    await env.step(typed(f"git checkout shapes.py && {FIX} && git commit -qam 'it is mine' || true"))
    seen = await env.step(DONE)
    assert (seen.done, seen.reward) == (True, 1.0), "what was committed counts too"
    assert seen.messages[-1].content == "[resolved: 2 of 2 failing tests pass now, 1 of 1 others still pass]"
    await env.close()


@pytest.mark.slow
@needs_sandbox
async def test_the_tools_find_edit_and_test_without_a_shell(bench: Path) -> None:
    env = make_env(bench, form="tools")
    prompt = await env.reset(TASK, seed=0)
    assert [tool.name for tool in prompt.tools] == ["bash", "read", "write", "edit", "search", "test"]

    async def tried(tool: str, **arguments: str) -> str:
        return (await env.step(call(tool, **arguments))).messages[0].content

    assert await tried("search", pattern="width .* height") == "./shapes.py:2:    return width + height\n"
    assert await tried("search", pattern="nothing like it") == "no line holds it"
    assert "no line holds it" in await tried("search", pattern="-rf", path="README.md")
    edited = await tried("edit", path="shapes.py", old="width + height", new="width * height")
    assert edited.startswith("edited: /testbed/shapes.py\n[diff]\n")
    assert (await tried("test")).startswith("[1 passed, 0 failed in ")
    assert "Required" not in await tried("test", tests="tests/test_shapes.py::test_half")
    assert (await env.step(Message(role="assistant", content="It is repaired."))).reward == 1.0
    await env.close()


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sed -i 's/== 2/== 3/' tests/test_shapes.py", "tests/test_shapes.py is a test"),
        (f"{FIX}; echo 'import pytest' > conftest.py", "conftest.py says how tests are run"),
        (f"{FIX}; ln -s /etc/passwd link", "link is no plain text file"),
        ("rm -rf .git", "git cannot tell what was changed"),
        ("sed -i 's/number . 2/number/' shapes.py", "0 of 2 failing tests pass now, 0 of 1 others still pass"),
        (f"{FIX}; sed -i 's/number . 2/number/' shapes.py", "2 of 2 failing tests pass now, 0 of 1 others still"),
        ("echo 'import os; os._exit(0)' > shapes.py", "the tests were broken off"),
    ],
)
async def test_what_does_not_resolve_it_is_paid_minus_1_with_the_reason(bench: Path, command: str, said: str) -> None:
    env = make_env(bench)
    await env.reset(TASK, seed=0)
    await env.step(typed(command))
    seen = await env.step(DONE)
    assert seen.reward == -1.0
    assert seen.messages[-1].content.startswith("[not resolved: ")
    assert said in seen.messages[-1].content
    await env.close()


@pytest.mark.slow
@needs_sandbox
async def test_what_is_repaired_in_part_is_paid_in_part_where_that_is_wanted(bench: Path) -> None:
    env = make_env(bench, partial=True)
    await env.reset(TASK, seed=0)
    await env.step(typed("sed -i 's/width + height/width * height if height else 7/' shapes.py"))
    assert await env.outcome() == 0.0, "one of two tests: a score of 0.5, from -1 to 1"
    await env.close()


class Scripted:
    """A client of the API whose model knows the answer."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.paid = list(replies), list[float | None]()

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> TurnReply:
        reply = Message(role="assistant", content=self.replies.pop(0))
        return TurnReply(turn=f"t{len(self.replies)}", message=reply, version=0)

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None:
        raise AssertionError("no step of this environment is paid by itself")

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None:
        self.paid.append(score)


@pytest.mark.slow
@needs_sandbox
async def test_a_scripted_policy_looks_repairs_tests_and_is_paid(bench: Path) -> None:
    env = make_env(bench)
    chat = Scripted("```\ncat shapes.py\n```", f"```\n{FIX}\n```", "```\n/opt/bin/run-tests\n```", "done")
    assert await run_episode(env, chat, task=TASK, seed=0, group=None, max_steps=10) == 1.0
    assert chat.paid == [1.0]
    await env.close()


@pytest.mark.slow
@needs_sandbox
async def test_a_repository_may_be_an_archive_and_an_agent_program_is_handed_it(bench: Path, tmp_path: Path) -> None:
    row = json.loads((bench / "instances.json").read_text())[0]
    (tmp_path / "instances.json").write_text(json.dumps([{**row, "base_commit": "v1"}]))
    (tmp_path / "environments.json").write_bytes((bench / "environments.json").read_bytes())
    (tmp_path / "archives").mkdir()
    with tarfile.open(tmp_path / "archives" / "tiny__shapes-v1.tar.gz", "w:gz") as packed:
        for name, text in FILES.items():
            entry = tarfile.TarInfo(f"shapes-1.0/{name}")
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))
    env = make_env(tmp_path)
    given = await env.hand_over(TASK, seed=0)
    assert given.instruction.endswith("The area of a rectangle is wrong.")
    assert (await given.sandbox.run(["bash", "-c", FIX], cwd=given.cwd)).ok
    assert await env.outcome() == 1.0
    await env.close()


# --- makers

MANY = """import pytest
from shapes import area, half


@pytest.mark.parametrize("number", range(60))
def test_many(number):
    assert half(number) * 2 == number
"""
PACKAGE = {"shapes/__init__.py": WRONG, "tests/test_shapes.py": MANY}
NEXT = {
    "shapes/__init__.py": RIGHT,
    "tests/test_shapes.py": f"{MANY}\n\ndef test_area():\n    assert area(2, 3) == 6\n",
    "CHANGES.txt": "Version 2: the area of rectangles.\n",
}


def sdist(folder: Path, version: str, texts: Mapping[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / f"shapes-{version}.tar.gz", "w:gz") as packed:
        for name, text in texts.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"shapes-{version}/{name}")
            entry.size = len(data)
            packed.addfile(entry, io.BytesIO(data))
    return folder / f"shapes-{version}.tar.gz"


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweMaker:
    """A maker whose index has two releases of one package, and whose tests run with this Python."""
    texts = {"1": PACKAGE, "2": NEXT}
    monkeypatch.setattr("openclaw_rl.envs.swe.making.versions", lambda package: ["2", "1"])
    monkeypatch.setattr(
        "openclaw_rl.envs.swe.making.source_archive",
        lambda package, version, folder: sdist(folder, version, texts[version]),
    )
    made = SweMaker(tmp_path, "shapes", packages=(), sandbox=SETTINGS, cache=tmp_path / "cache")
    made._evaluator._setups = {"shapes": SuiteSetup.model_validate(SETUP)}
    return made


@pytest.mark.slow
@needs_sandbox
async def test_two_releases_make_an_instance_that_only_the_second_ones_code_resolves(
    maker: SweMaker, tmp_path: Path
) -> None:
    said: list[str] = []
    found = await maker.pairs(count=1, report=lambda one: said.append(one.why))
    assert said == [""]
    assert found[0].failing == ("tests/test_shapes.py::test_area",)
    assert len(found[0].passing) == 60
    assert "Version 2: the area of rectangles." in found[0].problem
    assert [each.path for each in changes(found[0].patch)] == ["shapes/__init__.py"]
    assert read_instances(maker.file) == found, "what was made is read as it was"
    (tmp_path / "environments.json").write_text(json.dumps({"shapes": SETUP}))
    audited = await audit_task(lambda: make_env(tmp_path), "shapes-pairs/shapes__1-2")
    assert (audited.gold, audited.nothing) == (1.0, -1.0)


@pytest.mark.slow
@needs_sandbox
async def test_a_maker_that_is_stopped_leaves_what_it_had_found(maker: SweMaker) -> None:
    def stop(one: Candidate) -> None:
        if one.instance is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await maker.mutants(count=2, version="2", seed=0, report=stop)
    [left] = read_instances(maker.file)
    assert left.failing == ("tests/test_shapes.py::test_area",)


@pytest.mark.slow
@needs_sandbox
async def test_a_mutant_is_kept_where_some_of_the_tests_notice_it(maker: SweMaker) -> None:
    tried: list[str] = []
    found = await maker.mutants(count=1, version="2", seed=0, report=lambda one: tried.append(one.why))
    assert len(found) == 1, tried
    assert found[0].failing == ("tests/test_shapes.py::test_area",)
    assert found[0].problem.startswith("Something is wrong in shapes 2: these tests fail.")
    assert all("tests fail, not 1 to 15" in why for why in tried[:-1])


def test_a_package_that_is_one_module_is_mutated_too() -> None:
    assert code_paths(["schema.py", "setup.py", "test_schema.py", "conftest.py", "docs/conf.py"]) == ["schema.py"]
    assert code_paths(["setup.py", "noxfile.py", "src/pkg/a.py", "src/pkg/test_a.py"]) == ["src/pkg/a.py"]


def test_mutations_change_one_place_each_and_leave_a_program() -> None:
    source = b'def f(a, b):\n    """Not 1."""\n    if not a and b in (1, 2):\n        return True\n    return a - b  # \xc3\xa9 < 3\n'
    found = mutations(source)
    assert [each.what for each in found] == [
        *("not is left out", "and becomes or", "in becomes not in", "1 becomes 2", "2 becomes 3"),
        *("True becomes False", "- becomes +", "what is returned becomes None"),
    ]
    lines = [set(each.apply(source).splitlines()) - set(source.splitlines()) for each in found]
    assert all(len(changed) == 1 for changed in lines)
    assert b"    if a and b in (1, 2):" in lines[0]


def test_the_command_wants_one_kind_and_says_what_pip_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = CliRunner().invoke(cli, ["envs", "make-swe", "--package", "x", "--to", str(tmp_path)])
    assert str(told.exception) == "make-swe makes pairs or mutants; give one of --pairs and --mutants"
    monkeypatch.setattr(making, "_pip", lambda *words: "nothing of use")
    with pytest.raises(ConfigError, match="pip found no releases of x"):
        making.versions("x")


@pytest.mark.slow
@pytest.mark.skipif("OPENCLAW_RL_TEST_INDEX" not in os.environ, reason="OPENCLAW_RL_TEST_INDEX=1 fetches a package")
@needs_sandbox
async def test_a_real_package_gives_an_instance_that_its_own_fix_resolves(tmp_path: Path) -> None:
    """schema, from the index: a mutant with an environment built for it."""
    cache = tmp_path / "cache"
    made = SweMaker(tmp_path, "schema", packages=("mock",), sandbox=SETTINGS, cache=cache)
    found = await made.mutants(count=1, version="0.7.7", seed=0, report=lambda one: None)
    env = make_env(tmp_path, cache_dir=tmp_path)
    task = f"schema-mutants/{found[0].id}"
    assert not list((cache).glob("*/lib/python*/site-packages/schema.py")), "the environment holds none of its code"
    assert (await audit_task(lambda: env, task)).fault == ""
