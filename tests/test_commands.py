"""What people of the field type, as they type it, from a directory of their own: it does what it says, or is refused.

The fake model stands in for the weights, so that what is seen is the commands' doing; the settings that name it come from
the environment, where they rank above presets and below flags.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns

import httpx2
import pytest
from click.testing import CliRunner
from configs import refused

from openclaw_rl.app.devices import GpuLayout, gpu_layout
from openclaw_rl.cli import cli
from openclaw_rl.config import Resolved, load
from openclaw_rl.envs.toolcall.tools_config import read_tools_config
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import wait_until
from openclaw_rl.versions import LiveVersions

pytestmark = pytest.mark.usefixtures("elsewhere")

LAUNCH = Path(__file__).parents[1] / "scripts" / "launch"
FAKES = {
    "OPENCLAW_RL__POLICY__BACKEND": "fake",
    "OPENCLAW_RL__TRAIN__BACKEND": "fake",
    "OPENCLAW_RL__JUDGE__KIND": "rules",
    "OPENCLAW_RL__SERVE__PORT": "0",
    "OPENCLAW_RL__RUN__POLL": "0.01",
}
EXAMPLE = """
    {"session_id": "user_session_abc123", "turns": [
      {"type": "main", "prompt": "Help me refactor this function to use async/await", "response": "Here's the refactored version: ...",
       "next_state": "User accepted the change and said 'perfect, thanks!'", "trainable": true},
      {"type": "side", "prompt": "What is 2+2?", "response": "4", "trainable": false}]}
"""


def exported(line: str) -> dict[str, str]:
    """The variables of a typed line: ``export A=1 B="x y"; …`` or ``A=1 B=2 command``."""
    words = shlex.split(line.partition(";")[0].removeprefix("export "))
    return dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))


def launched(script: str, line: str = "", *, flags: str = "") -> Resolved:
    """The settings with which a launch script starts, by the presets that it names."""
    found = re.search(r"_up\.sh\" \S+ (\S+) \"\$@\"", (LAUNCH / script).read_text())
    assert found is not None
    given = dict(zip(flags.split()[::2], flags.split()[1::2], strict=True))
    return load(preset=found[1], environ=exported(line), flags=given)


def typed(*words: str, **environ: str) -> str:
    """What the command says to a line that it refuses."""
    done = CliRunner().invoke(cli, [*words, "--run-dir", "run"], env={**FAKES, **environ})
    assert done.exit_code != 0
    assert not Path("run").exists(), "a refused start leaves nothing"
    return str(done.exception)


class Shell:
    """A shell in the working directory in which typed lines run."""

    def __init__(self, **environ: str) -> None:
        home = str(Path.cwd() / "home")
        paths = os.pathsep.join(filter(None, (str(LAUNCH.parents[1] / "src"), os.environ.get("PYTHONPATH"))))
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "PYTHON": sys.executable,
            "PYTHONPATH": paths,
            **FAKES,
        }
        self.environ |= environ
        self.said: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def run(self, line: str) -> str:
        """Run a line that ends by itself; all that it printed."""
        done = subprocess.run(["bash", "-c", line], env=self.environ, capture_output=True, text=True, check=False)
        self.code = done.returncode
        return done.stdout + done.stderr

    def serve(self, line: str) -> str:
        """Run a line that serves, until it listens; the address."""
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        for said in self._process.stdout:
            self.said.append(said)
            if said.startswith("listening on"):
                self._rest = threading.Thread(target=self._process.stdout.read, daemon=True)
                self._rest.start()
                return said.split()[-1]
        raise AssertionError("it ended before it listened: " + "".join(self.said))

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(timeout=60) == 0
            self._rest.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@pytest.fixture
def shell() -> Iterator[Shell]:
    shell = Shell()
    yield shell
    shell.end()


# --- launching

SCRIPTS = sorted(path.name for path in LAUNCH.glob("run_qwen3_*.sh"))


@pytest.mark.slow
def test_a_launch_script_imports_the_data_trains_saves_there_and_serves_the_model(shell: Shell) -> None:
    Path("data").mkdir()
    Path("data/talk.json").write_text(EXAMPLE)
    shell.environ |= exported("export MODEL_PATH=./qwen3-7b DATA_PATH=./data CKPT_SAVE_DIR=./checkpoints")
    shell.environ["OPENCLAW_RL__TRAIN__MAX_WAIT"] = "0"
    url = shell.serve(f"bash {LAUNCH}/run_qwen3_7b_openclaw_rl.sh")
    assert "note: environment DATA_PATH is taken for train.data" in "".join(shell.said)
    asked = {"model": "your-model-name", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    answer = httpx2.post(f"{url}/chat/completions", json=asked, headers={"authorization": "Bearer local"})
    assert answer.text.rstrip().endswith("data: [DONE]")
    log = Path("logs/training.log")
    wait_until(lambda: "version 1 is live" in log.read_text())
    assert re.search(r"step 1: 1 samples.*, version 1", log.read_text())
    saved = {"checkpoint-1", "checkpoint-latest", "000001"}
    wait_until(lambda: saved <= {path.name for path in Path("checkpoints").iterdir()})
    shell.end()
    shell.serve(f"bash {LAUNCH}/run_qwen3_7b_openclaw_rl.sh")
    wait_until(lambda: "recorded file=talk.json turns=0 known=2 refused=0" in log.read_text())
    with LedgerReader(Path("checkpoints/run/ledger.db")) as ledger:
        scores = [
            found.score for each in ledger.session("user_session_abc123", "default") if (found := ledger.verdict(each))
        ]
        assert scores == [1, None]
        assert LiveVersions(ledger).live().number == 1  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_checkpoint_is_resumed_and_evaluated_by_the_names_of_the_field(shell: Shell) -> None:
    Path("talk.json").write_text(EXAMPLE)
    shell.environ |= exported("export MODEL_PATH=./m CKPT_SAVE_DIR=./checkpoints")
    line = f"{sys.executable} -m openclaw_rl train --run-dir first --data talk.json"
    assert "version 1 is live" in shell.run(line)
    said = shell.run(
        f'bash {LAUNCH}/run_eval.sh --model-path $CKPT_SAVE_DIR/checkpoint-latest --eval-tasks "conversation,tool-use"'
    )
    assert (shell.code, "conversation" in said, "tool-use" in said) == (0, True, True), said
    shell.environ |= {"RESUME_CKPT": "./checkpoints/checkpoint-1", "CKPT_SAVE_DIR": "./other"}
    line = f"{sys.executable} -m openclaw_rl train --once --run-dir second --resume-from-checkpoint $RESUME_CKPT"
    assert "moved 0 items" in shell.run(line)
    with LedgerReader(Path("second/ledger.db")) as ledger:
        assert [(v.number, v.origin) for v in ledger.versions()] == [(0, "trained"), (1, "checkpoint")]


def test_there_is_a_script_for_each_size_and_method_with_and_without_an_adapter() -> None:
    kinds = [f"{lora}openclaw_{method}" for lora in ("", "lora_") for method in ("rl", "opd", "combine", "topk_select")]
    assert {f"run_qwen3_{size}_{kind}.sh" for size in ("4b", "7b", "8b") for kind in kinds} == set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_launch_script_means_what_its_name_says(script: str) -> None:
    config = launched(script).config
    size = script.split("_")[2]
    methods = {"rl": "binary", "opd": "opd", "combine": "combine", "topk_select": "topk"}
    assert config.train.method == methods[script.removesuffix(".sh").partition("openclaw_")[2]]
    assert config.train.lora.enabled == ("_lora_" in script)
    assert config.policy.model == {"4b": "Qwen/Qwen3-4B", "7b": "embedded", "8b": "Qwen/Qwen3-8B"}[size]


@pytest.mark.slow
def test_a_script_of_a_size_that_nobody_publishes_asks_for_the_model(shell: Shell) -> None:
    said = shell.run(f"bash {LAUNCH}/run_qwen3_7b_openclaw_combine.sh")
    assert (shell.code, said) == (
        2,
        "error: which model is it? set MODEL_PATH to its folder or Hugging Face id, or give --model-path\n",
    )


@pytest.mark.parametrize(("line", "weights"), [("OPENCLAW_TOPK_W_RL=0", (0, 1)), ("OPENCLAW_TOPK_W_OPD=0", (1, 0))])
def test_a_zero_weight_leaves_one_branch_of_top_k_selection(line: str, weights: tuple[float, float]) -> None:
    loss = launched("run_qwen3_4b_openclaw_topk_select.sh", line).config.train.loss
    assert (loss.w_rl, loss.w_opd, loss.k, loss.hint_selection) == (*weights, 4, "sequence_optimal")


def test_lora_arguments_of_a_launch_line_outrank_the_scripts_own() -> None:
    line = 'LORA_ARGS="--use-lora --lora-rank 64 --lora-alpha 128" bash run'
    lora = launched("run_qwen3_7b_lora_openclaw_rl.sh", line).config.train.lora
    assert (lora.enabled, lora.rank, lora.alpha) == (True, 64, 128)


@pytest.mark.parametrize("judge", ["JUDGE_MODEL_PATH=./judge", "PRM_MODEL_PATH=Qwen/Qwen3-4B"])
def test_a_judge_model_is_taken_and_said(judge: str) -> None:
    resolved = launched("run_qwen3_7b_openclaw_opd.sh", judge)
    models = resolved.config.judge.models
    assert (models.hints or models.score) in (str(Path("judge").absolute()), "./judge", "Qwen/Qwen3-4B")
    assert resolved.config.train.method == "opd"


SERVE = (
    "serve --model-path $BASE_MODEL_PATH --port $OPENCLAW_PORT --backend sglang --enable-rl-intercept"
    " --rl-buffer-dir ./rl_buffer"
)


def test_the_server_takes_the_flags_of_the_field_and_refuses_what_cannot_be() -> None:
    environ = exported("export OPENCLAW_PORT=8000 OPENCLAW_HOST=0.0.0.0; python") | {"BASE_MODEL_PATH": "m"}
    words = shlex.split(SERVE.replace("$BASE_MODEL_PATH", "m").replace("$OPENCLAW_PORT", "8000"))
    done = CliRunner().invoke(cli, words, env={**FAKES, **environ})
    assert str(done.exception) == (
        "policy.backend = sglang: this Python has no package sglang; name one that has it with --engine-python"
        " (scripts/vllm-env.sh sets up vLLM for a CPU), or an engine that runs already with --engine-url"
    )
    words[words.index("sglang")] = "fake"
    done = CliRunner().invoke(cli, words, env={**FAKES, **environ})
    assert "serve.host = '0.0.0.0' is reachable from outside and there is no key; set OPENCLAW_API_KEY" in str(
        done.exception
    )


@pytest.mark.slow
def test_the_server_listens_where_it_is_told_and_keeps_its_buffer_there(shell: Shell) -> None:
    shell.environ |= {"OPENCLAW_HOST": "0.0.0.0", "OPENCLAW_API_KEY": "secret"}
    line = f"{sys.executable} -m openclaw_rl {SERVE}"
    url = shell.serve(line.replace("$BASE_MODEL_PATH", "m").replace("$OPENCLAW_PORT", "0").replace("sglang", "fake"))
    assert url.startswith("http://0.0.0.0:")
    assert Path("rl_buffer/ledger.db").is_file()


ENVIRONMENTS = {
    "terminal": "ENV_TYPE=terminal MAX_STEPS=20 PARALLEL_ENVS=32 bash run",
    "gui": "ENV_TYPE=gui SCREENSHOT_BACKEND=playwright PARALLEL_ENVS=16 bash run",
    "toolcall": "ENV_TYPE=toolcall TOOLS_CONFIG=./toolcall-rl/tools_config.json PARALLEL_ENVS=64 bash run",
    "swe": "ENV_TYPE=swe SWE_BENCH_PATH=/path/to/swe-bench PARALLEL_ENVS=8 bash run",
}


@pytest.mark.parametrize("name", ["terminal", "toolcall", "gui", "swe"])
def test_an_environment_that_ships_takes_its_names(name: str) -> None:
    env = load(environ=exported(ENVIRONMENTS[name])).config.env
    assert (env.type, str(env.parallel)) == (name, exported(ENVIRONMENTS[name])["PARALLEL_ENVS"])
    assert load(flags={"--env": name}).config.env.type == name


@pytest.mark.slow
def test_an_environments_launch_script_refuses_as_the_command_does(shell: Shell) -> None:
    assert "env.swe_bench_path is not set; set SWE_BENCH_PATH" in shell.run(f"bash {LAUNCH}/run_swe_rl.sh")
    assert shell.code == 2
    for name in ENVIRONMENTS:
        assert f"ENV_TYPE=${{ENV_TYPE:-{name}}} exec" in (LAUNCH / f"run_{name}_rl.sh").read_text()


def test_what_is_trained_here_cannot_be_served_in_the_cloud_nor_the_other_way_without_a_download() -> None:
    cloud = exported("TINKER_API_KEY=tml-1 TINKER_ENDPOINT=https://cloud.example bash run")
    said = typed("up", "--backend", "tinker", "--set", "train.backend=local", **cloud)
    assert "policy.backend = tinker serves what is trained there, but train.backend = local" in said
    assert "tml-1" not in said
    said = typed("up", "--backend", "local", "--set", "train.backend=tinker", **cloud)
    assert "train.backend = tinker trains elsewhere, but policy.backend = local serves here" in said


# --- from the repository's root, as typed there


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: all that lies in the repository's root, without what a run would leave there."""
    folder = tmp_path_factory.mktemp("root")
    for each in LAUNCH.parents[1].iterdir():
        if not each.name.startswith(".") and each.name not in ("logs", "build", "dist"):
            (folder / each.name).symlink_to(each)
    monkeypatch.chdir(folder)
    return folder


def folder_of(script: str) -> str:
    """The folder in which the field has a script."""
    method = script.removesuffix(".sh").partition("openclaw_")[2]
    return {"rl": "openclaw-rl", "opd": "openclaw-opd"}.get(method, "openclaw-combine")


TYPED = {
    **{f"{folder_of(script)}/{script}": "which model is it?" for script in SCRIPTS if "_7b_" in script},
    "terminal-rl/run_terminal_rl.sh --backend none": "no policy called 'none'",
    "gui-rl/run_gui_rl.sh --backend none": "no policy called 'none'",
    "toolcall-rl/run_toolcall_rl.sh --backend none": "no policy called 'none'",
    "swe-rl/run_swe_rl.sh": "env.swe_bench_path is not set; set SWE_BENCH_PATH",
    "openclaw-test/run_eval.sh --eval-tasks magic": "magic",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", TYPED)
def test_a_script_is_found_where_the_field_has_it(line: str, root: Path) -> None:
    shell = Shell()
    assert TYPED[line] in shell.run(f"bash {line}")
    assert shell.code in (1, 2)


@pytest.mark.slow
def test_a_launch_line_typed_in_the_root_serves(root: Path, shell: Shell) -> None:
    shell.environ |= exported("export MODEL_PATH=./qwen3-7b CKPT_SAVE_DIR=./checkpoints")
    url = shell.serve("bash openclaw-opd/run_qwen3_7b_openclaw_opd.sh")
    assert httpx2.get(f"{url}/models").status_code == 200
    assert Path("checkpoints/run/ledger.db").is_file()


@pytest.mark.slow
def test_the_server_module_of_the_field_serves(root: Path, shell: Shell) -> None:
    flags = SERVE.removeprefix("serve ").replace("$BASE_MODEL_PATH", "m").replace("$OPENCLAW_PORT", "0")
    url = shell.serve(f"{sys.executable} -m openclaw.server {flags.replace('sglang', 'fake')}")
    assert httpx2.get(f"{url}/models").status_code == 200
    assert Path("rl_buffer/ledger.db").is_file()


def test_the_server_module_has_the_help_of_serve() -> None:
    words = [sys.executable, "-m", "openclaw.server", "--help"]
    done = subprocess.run(words, env=Shell().environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: python -m openclaw.server [OPTIONS]\n\n  Run the API alone.")


def test_the_tools_file_of_the_field_is_the_example_with_its_tools_and_tasks(root: Path) -> None:
    found = read_tools_config(Path("toolcall-rl/tools_config.json"))
    assert len(found.tools) == 2
    assert found.tasks == LAUNCH.parents[1] / "examples" / "toolcall" / "tasks.jsonl"


@pytest.mark.slow
def test_the_launcher_of_slime_starts_what_it_means_and_says_the_line_where_it_cannot(root: Path, shell: Shell) -> None:
    line = f"{sys.executable} slime/train.py --hf-checkpoint ./m --save=./out --n-samples-per-prompt 8 --rollout-temperature 0.9"
    ours = "openclaw-rl up --model-path ./m --save-dir ./out --num-rollouts-per-prompt 8 --set policy.sampling.temperature=0.9"
    said = shell.run(f"{line} --colocate --tensor-model-parallel-size 2")
    assert (shell.code, said) == (
        2,
        "error: --colocate, --tensor-model-parallel-size: no meaning here (docs/coming-from.md); type instead:"
        f" {ours}\n",
    )
    shell.serve(f"{line} --run-dir run")
    assert f"note: this is {ours} --run-dir run\n" in shell.said
    assert Path("run/ledger.db").is_file()


@pytest.mark.slow
def test_the_requirements_are_this_checkout(tmp_path: Path) -> None:
    ours = LAUNCH.parents[1]
    copytree(ours / "src", tmp_path / "src", ignore=ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("requirements.txt", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ours / name).read_bytes())
    words = [
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "-r",
        "requirements.txt",
    ]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Would install openclaw-rl-" in done.stdout


# --- settings

GROUPED = """
CKPT_ARGS="--save-interval 100 --save-dir ./checkpoints" ROLLOUT_ARGS="--rollout-batch-size 64 --num-rollouts-per-prompt 4"
OPTIMIZER_ARGS="--lr 1e-6 --weight-decay 0.01 --adam-beta1 0.9 --adam-beta2 0.999"
LORA_ARGS="--lora-rank 64 --lora-alpha 128 --lora-dropout 0.05"
"""


def test_the_grouped_names_are_read_as_flags() -> None:
    train = load(environ=exported(GROUPED)).config.train
    assert (train.save_interval, train.save_dir) == (100, Path.cwd() / "checkpoints")
    assert (train.batch_size, train.num_rollouts_per_prompt) == (64, 4)
    assert (train.optim.lr, train.optim.weight_decay) == (1e-6, 0.01)
    assert (train.optim.adam_beta1, train.optim.adam_beta2) == (0.9, 0.999)
    assert (train.lora.rank, train.lora.alpha, train.lora.dropout) == (64, 128, 0.05)


def test_gpus_are_lists_or_counts_and_eight_are_laid_out_so_by_default() -> None:
    lists = load(environ=exported('TRAIN_GPUS="0,1,2,3" ROLLOUT_GPUS="4,5,6,7"')).config
    assert gpu_layout(lists, visible=8) == GpuLayout(train=(0, 1, 2, 3), rollout=(4, 5, 6, 7))
    counts = load(environ=exported("NUM_GPUS=8 ACTOR_GPUS=4 ROLLOUT_GPUS=2 PRM_GPUS=1 PRM_TEACHER_GPUS=1")).config
    assert gpu_layout(counts, visible=8) == gpu_layout(load(environ={}).config, visible=8)
    assert "more than there is" in typed("up", NUM_GPUS="60000")


def test_votes_are_set_by_each_of_their_names() -> None:
    llm = load(environ=exported("MAJORITY_VOTE_N=5 MAJORITY_VOTE_THRESHOLD=0.6")).config.judge.llm
    assert (llm.votes, llm.threshold) == (5, 0.6)
    flagged = load(environ=exported("PRM_M=3"), flags={"--majority-vote-n": 7, "--num-judge-workers": 4}).config.judge
    assert (flagged.llm.votes, flagged.workers) == (7, 4)


def test_top_k_and_the_clips_are_set_by_their_names() -> None:
    line = (
        "OPENCLAW_TOPK_K=4 OPENCLAW_TOPK_MAX_CAND=3 OPENCLAW_TOPK_HINT_SELECTION=sequence_optimal"
        " OPENCLAW_TOPK_SUBSET_MODE=student OPENCLAW_TOPK_ADV_DIFF_CLIP=1.0"
    )
    resolved = load(environ=exported(line), flags={"--eps-clip": 0.2, "--eps-clip-high": 0.28})
    loss = resolved.config.train.loss
    assert (loss.k, loss.hint_selection, loss.subset, loss.clip) == (4, "sequence_optimal", "student", 1.0)
    assert (loss.eps_low, loss.eps_high, resolved.config.judge.max_hints) == (0.2, 0.28, 3)
    assert resolved.sources["train.loss.eps_high"] == "flag --eps-clip-high"


def test_models_and_folders_are_set_by_their_names_and_the_reference_is_the_base() -> None:
    line = "HF_CKPT=./m REF_LOAD=./m SAVE_CKPT=./out PRM_TEACHER_LOAD=./t PRM_TEACHER_HF=./t OPENCLAW_RECORD_ENABLED=1"
    resolved = load(environ=exported(line))
    config = resolved.config
    assert (config.policy.model, config.train.save_dir) == (str(Path("m").absolute()), Path("out").absolute())
    assert (config.train.loss.teacher_model, config.run.record) == (str(Path("t").absolute()), True)
    assert any(note.startswith("environment REF_LOAD is the base model") for note in resolved.notes)
    Path("torch_dist").mkdir()
    assert "is no model in Hugging Face form" in refused(environ=exported("HF_CKPT=./m REF_LOAD=./torch_dist"))
    elsewhere = load(environ=exported("OPENCLAW_COMBINE_OPD_TEACHER_SOURCE=rollout")).notes
    assert elsewhere == (
        "environment OPENCLAW_COMBINE_OPD_TEACHER_SOURCE = rollout changes nothing: the teacher always runs in the trainer",
    )


def test_a_checkpoint_that_is_not_there_is_refused() -> None:
    assert "train.resume" in str(
        CliRunner()
        .invoke(cli, ["up", "--run-dir", "run", "--resume-from-checkpoint", "./checkpoints/checkpoint-500"], env=FAKES)
        .exception
    )


def test_the_remedies_for_memory_are_taken() -> None:
    environ = exported('LORA_ARGS="--use-lora --lora-rank 32" PARALLEL_ENVS=8')
    config = load(environ=environ, flags={"--offload-optimizer-state": True}).config
    assert (config.train.local.offload_optimizer, config.train.lora.rank, config.env.parallel) == (True, 32, 8)
    assert "this Python has no package vllm" in typed("up", "--backend", "vllm")


# --- a conversation to import


def test_the_example_conversation_is_taken_whole(tmp_path: Path) -> None:
    Path("talk.json").write_text(EXAMPLE)
    done = CliRunner().invoke(cli, ["import", "talk.json", "--run-dir", "run", "--json"], env=FAKES)
    assert done.exit_code == 0, done.output
    [found] = json.loads(done.stdout).values()
    assert (found["sessions"], found["turns"], found["main"], found["no_verdict"]) == (1, 2, 1, {})
