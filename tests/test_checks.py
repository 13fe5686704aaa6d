"""What cannot work is refused before anything listens, with the remedy; doctor says the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_rl.app.application import App
from openclaw_rl.app.checks import refuse_unworkable, unused_key
from openclaw_rl.app.doctor import Diagnosis, examine
from openclaw_rl.config import load
from openclaw_rl.errors import ConfigError, MissingExtra, OpenClawError

FAKES = ("policy.backend=fake", "policy.model=fake", "train.backend=fake", "judge.kind=rules", "serve.port=0")

MINE = """
class Deaf:
    name = "deaf"
    async def judge(self): ...

class Idle:
    name = "idle"
    def tasks(self): return ("rest",)
    async def reset(self, task): ...
    async def close(self): ...

class Whole:
    def __init__(self): self.name = "whole"
    def tasks(self): return ("rest",)
    async def reset(self, task, *, seed): ...
    async def step(self, reply): ...
    async def close(self): ...

def score(prompt, reply): return 1.0
def generate(policy, prompt): ...
def loss(): ...
def rollout(env): ...
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


def refused(tmp_path: Path, *sets: str) -> str:
    """What start-up says; nothing of a run may be there after it."""
    run = tmp_path / "run"
    with pytest.raises(OpenClawError) as caught:
        App(load(environ={}, sets=[f"run.dir={run}", *FAKES, *sets]).config)
    assert not run.exists()
    return str(caught.value)


def diagnosed(tmp_path: Path, check: str, *sets: str) -> Diagnosis:
    found = examine(load(environ={}, sets=[f"run.dir={tmp_path / 'run'}", *FAKES, *sets]).config)
    return next(each for each in found if each.check == check)


CASES = [
    ("environment", "env.type=terminl", "no env called 'terminl'", "file.py:attribute"),
    ("environment", "env.type=swe", "env.swe_bench_path is not set", "set SWE_BENCH_PATH to a folder of instances"),
    ("environment", "env.type={mine}:Idle", "it has no 'step'", "see openclaw_rl.ports.Env"),
    ("environment", "env.type={mine}:Idle", "reset() takes no argument 'seed'", "see openclaw_rl.ports.Env"),
    ("environment", "env.type={mine}:Idel", "did you mean 'Idle'?", "has no 'Idel'"),
    ("environment", "train.rollout={mine}:rollout", "takes 1 positional arguments", "see openclaw_rl.ports.Rollout"),
    ("judge", "judge.kind=llm", "judge.kind is llm, but judge.llm has no base_url and model", "set judge.llm.base_url"),
    ("judge", "judge.custom={mine}:Deaf", "judge() takes 0 positional arguments, not 1", "see openclaw_rl.ports.Judge"),
    ("judge", "judge.custom={mine}:score", "takes neither (prompt, reply, next_state)", "see openclaw_rl.ports.Judge"),
    ("judge", "judge.custom={mine}:number", "is int, not a class or a function", "judge"),
    ("backends", "policy.generate={mine}:generate", "takes no argument 'version'", "see openclaw_rl.ports.Generate"),
    ("backends", "train.loss.custom={mine}:loss", "it takes (), not (inputs)", "see openclaw_rl.ports.Loss"),
    ("backends", "train.loss.custom=nowhere.py:loss", "there is no file", "path/to/file.py:attribute"),
    ("backends", "train.loss.custom={mine}", "has the wrong shape", "see openclaw_rl.ports.Loss"),
    ("judge", "judge.custom={mine}", "takes neither (prompt, reply, next_state)", "see openclaw_rl.ports.Judge"),
    ("backends", "policy.backend=vllm", "this Python has no package vllm", "with --engine-python (scripts/vllm-env.sh"),
    ("backends", "policy.backend=vllm policy.engine_python=./no", "policy.engine_python: there is no", "bin/python"),
    (
        "backends",
        "policy.backend=tinker train.backend=local",
        "serves what is trained there, but train.backend = local",
        "--preset tinker",
    ),
    (
        "backends",
        "policy.backend=local train.backend=tinker",
        "trains elsewhere, but policy.backend = local",
        "cloud.download = true",
    ),
    ("backends", "gpus.turns=on", "gpus.turns is on, but policy.backend = ", "use vllm or sglang"),
    ("backends", "gpus.total=60000", "gpus.total = 60000 is more than there is", "take out gpus.* and NUM_GPUS"),
    ("backends", "policy.backend=locl", "no policy called 'locl' (did you mean 'local'?)", "file.py:attribute"),
]


@pytest.mark.parametrize(("check", "setting", "what", "remedy"), CASES)
def test_what_cannot_work_is_refused_at_the_start_and_by_doctor(
    tmp_path: Path, mine: Path, check: str, setting: str, what: str, remedy: str
) -> None:
    setting = setting.format(mine=mine)
    said = refused(tmp_path, *setting.split())
    assert what in said
    assert remedy in said
    found = diagnosed(tmp_path, check, *setting.split())
    assert found.state == "trouble"
    assert what in found.detail
    assert remedy in f"{found.detail}; {found.remedy}"


def test_doctor_says_what_is_taken_of_a_bare_file(tmp_path: Path) -> None:
    file = tmp_path / "rm.py"
    file.write_text("def helper(a, b): ...\ndef get_reward_model(config): ...\n")
    found = diagnosed(tmp_path, "judge", f"judge.custom={file}")
    assert (found.state, found.detail) == ("ok", f"{file}:get_reward_model")


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        App(load(environ={}, sets=[f"run.dir={tmp_path / 'run'}", *FAKES, "env.type=terminl", "judge.kind=llm"]).config)
    assert [line.split(" ")[1] for line in str(caught.value).splitlines()] == ["env", "is"]


def test_a_setting_that_an_environment_does_not_take_is_refused(tmp_path: Path, mine: Path) -> None:
    said = refused(tmp_path, f"env.type={mine}:Whole", "env.tools_config=tools.json")
    assert said == f"env.tools_config is set, but environment {mine}:Whole does not take it; take it out"
    said = refused(tmp_path, f"env.type={mine}:Whole", "env.screenshot_backend=selenium")
    assert said.startswith("env.screenshot_backend is set, but environment")


def test_one_fault_of_two_loops_is_said_once(tmp_path: Path) -> None:
    assert refused(tmp_path, "gpus.total=60000").count("gpus.total = 60000") == 1


def test_what_works_is_not_refused(tmp_path: Path, mine: Path) -> None:
    sets = [f"run.dir={tmp_path / 'run'}", *FAKES, f"env.type={mine}:Whole", "judge.kind=llm"]
    sets += ["judge.llm.base_url=http://127.0.0.1:9/v1", "judge.llm.model=judge"]
    App(load(environ={}, sets=sets).config).close()
    assert diagnosed(tmp_path, "environment", f"env.type={mine}:Whole").state == "ok"
    assert diagnosed(tmp_path, "judge", *sets[-3:]).state == "ok"


def test_a_loop_that_runs_alone_is_not_refused_for_what_others_need(tmp_path: Path) -> None:
    config = load(environ={}, sets=[f"run.dir={tmp_path / 'run'}", *FAKES, "env.type=terminl", "judge.kind=llm"]).config
    with pytest.raises(ConfigError, match="terminl"):
        App(config)
    app = App(config, loops=("collect",))
    assert list(app.loops) == ["collect"]
    app.close()


@pytest.mark.parametrize("backend", ["policy.backend=local", "train.backend=local"])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "no model at '{there}'; give 'embedded', a Hugging Face id such as Qwen/Qwen3-0.6B, a folder"),
        ("empty", "{there} has no config.json; is it the folder of a model?"),
        ("half", "{there} has no model.safetensors; convert the weights"),
        ("notes.txt", "no model at '{there}'; give"),
    ],
)
def test_a_path_that_leads_to_no_model_is_refused(tmp_path: Path, backend: str, place: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text("{}")
    (tmp_path / "notes.txt").touch()
    there = tmp_path / place
    assert refused(tmp_path, backend, f"policy.model={there}").startswith(f"policy.model: {said.format(there=there)}")
    if backend.startswith("policy"):
        found = diagnosed(tmp_path, "model", backend, f"policy.model={there}")
        assert (found.state, found.detail) == ("trouble", said.format(there=there).split(";")[0])


def test_a_name_without_a_path_that_is_neither_built_in_nor_an_id_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "policy.backend=local", "policy.model=qwen3").startswith(
        "policy.model: no model at 'qwen3'"
    )


@pytest.mark.parametrize(
    ("place", "state", "said"),
    [
        ("http://127.0.0.1:9/v1", "ok", "http://127.0.0.1:9/v1"),
        ("/no/such/folder", "trouble", "no model at '/no/such/folder'"),
        ("some/model", "warning", "some/model is not a folder here"),
    ],
)
def test_doctor_looks_for_the_judges_models(tmp_path: Path, place: str, state: str, said: str) -> None:
    found = diagnosed(tmp_path, "judge", "judge.kind=auto", f"judge.models.score={place}")
    assert (found.state, found.detail) == (state, said)


def test_doctor_warns_of_a_judge_model_without_an_address(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, "judge", "judge.kind=auto", "judge.llm.model=/models/prm")
    assert (found.state, found.remedy) == (
        "warning",
        "set judge.llm.base_url, or name a folder or Hugging Face id as judge.models.score",
    )


def test_a_key_of_the_cloud_that_nothing_uses_is_noted() -> None:
    def note(*settings: str) -> str | None:
        return unused_key(load(environ={"TINKER_API_KEY": "tml-1"}, sets=settings).config)

    assert note() == "cloud.tinker_api_key is set, but this run serves and trains here; --preset tinker does both there"
    assert note("policy.backend=tinker", "train.backend=tinker") is None
    assert unused_key(load(environ={}, sets=()).config) is None


def test_a_python_without_torch_neither_serves_nor_trains_here_and_is_given_the_line_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    here = load(environ={}, sets=[f"run.dir={tmp_path}"]).config
    for loop in ("serve", "train"):
        with pytest.raises(MissingExtra, match=r"'torch', which is not installed; pip install 'openclaw-rl\[local\]'$"):
            refuse_unworkable(here, (loop,))
    elsewhere = ["policy.backend=fake", "policy.model=fake", "train.backend=fake"]
    refuse_unworkable(load(environ={}, sets=[f"run.dir={tmp_path}", *elsewhere]).config, ("serve", "train"))
    said = {each.check: each for each in examine(here)}["torch"]
    assert (said.state, said.remedy) == ("trouble", "pip install 'openclaw-rl[local]'")


BARE = """
import sys
sys.modules["torch"] = None
sys.argv = ["openclaw-rl", "up", "--run-dir", sys.argv[1], "--set", "serve.port=0"]
from openclaw_rl.cli import main
main()
"""


def test_up_without_torch_refuses_in_one_line_before_it_listens(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "listening" not in done.stdout
    assert done.stderr.splitlines() == [
        "error: this needs the package 'torch', which is not installed; pip install 'openclaw-rl[local]'"
    ]
