"""The flags and environment names that users of the field know lead to their settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from configs import in_full, refused, written
from pydantic import SecretStr

from openclaw_rl.config import ENVIRONMENT, FLAGS, GROUPS, SETTINGS, load
from openclaw_rl.config.renamed import STATED
from openclaw_rl.config.settings import Config
from openclaw_rl.config.shown import get

pytestmark = pytest.mark.usefixtures("elsewhere")


PRODUCT_FLAGS = [
    "--host",
    "--port",
    "--enable-rl-intercept",
    "--run-dir",
    "--rl-buffer-dir",
    "--model-path",
    "--backend",
    "--eps-clip",
    "--eps-clip-high",
    "--majority-vote-n",
    "--majority-vote-threshold",
    "--num-judge-workers",
    "--use-lora",
    "--lora-rank",
    "--lora-alpha",
    "--lora-dropout",
    "--lr",
    "--weight-decay",
    "--adam-beta1",
    "--adam-beta2",
    "--rollout-batch-size",
    "--num-rollouts-per-prompt",
    "--offload-optimizer-state",
    "--save-interval",
    "--save-dir",
    "--resume-from-checkpoint",
    "--custom-loss-function-path",
    "--rollout-function-path",
    "--custom-generate-function-path",
    "--custom-rm-path",
    "--eval-tasks",
]

KNOWN_NAMES = {
    "MODEL_PATH": ("a/model", "policy.model", "a/model"),
    "BASE_MODEL_PATH": ("a/model", "policy.model", "a/model"),
    "HF_CKPT": ("a/model", "policy.model", "a/model"),
    "JUDGE_MODEL_PATH": ("a/judge", "judge.models.hints", "a/judge"),
    "PRM_MODEL_PATH": ("a/judge", "judge.models.score", "a/judge"),
    "PRM_TEACHER_HF": ("a/teacher", "train.loss.teacher_model", "a/teacher"),
    "PRM_TEACHER_LOAD": ("a/teacher", "train.loss.teacher_model", "a/teacher"),
    "CKPT_SAVE_DIR": ("saves", "train.save_dir", Path("saves")),
    "SAVE_CKPT": ("saves", "train.save_dir", Path("saves")),
    "RESUME_CKPT": ("saves/7", "train.resume", Path("saves/7")),
    "DATA_PATH": ("a.jsonl,b.jsonl", "train.data", (Path("a.jsonl"), Path("b.jsonl"))),
    "OPENCLAW_PORT": ("8123", "serve.port", 8123),
    "OPENCLAW_HOST": ("0.0.0.0", "serve.host", "0.0.0.0"),
    "OPENCLAW_API_KEY": ("12345", "serve.api_key", SecretStr("12345")),
    "MAJORITY_VOTE_N": ("5", "judge.llm.votes", 5),
    "PRM_M": ("7", "judge.llm.votes", 7),
    "MAJORITY_VOTE_THRESHOLD": ("0.6", "judge.llm.threshold", 0.6),
    "OPENCLAW_TOPK_W_RL": ("0.5", "train.loss.w_rl", 0.5),
    "OPENCLAW_TOPK_W_OPD": ("0", "train.loss.w_opd", 0.0),
    "OPENCLAW_TOPK_K": ("8", "train.loss.k", 8),
    "OPENCLAW_TOPK_MAX_CAND": ("1", "judge.max_hints", 1),
    "OPENCLAW_TOPK_HINT_SELECTION": ("token_optimal", "train.loss.hint_selection", "token_optimal"),
    "OPENCLAW_TOPK_SUBSET_MODE": ("overlap", "train.loss.subset", "overlap"),
    "OPENCLAW_TOPK_ADV_DIFF_CLIP": ("-1", "train.loss.clip", -1.0),
    "OPENCLAW_RECORD_ENABLED": ("0", "run.record", False),
    "TRAIN_GPUS": ("0,1", "gpus.train", (0, 1)),
    "ROLLOUT_GPUS": ("2", "gpus.rollout", 2),
    "NUM_GPUS": ("8", "gpus.total", 8),
    "ACTOR_GPUS": ("4", "gpus.train", 4),
    "PRM_GPUS": ("1", "gpus.judge", 1),
    "PRM_TEACHER_GPUS": ("1", "gpus.teacher", 1),
    "TINKER_API_KEY": ("tml-1", "cloud.tinker_api_key", SecretStr("tml-1")),
    "TINKER_ENDPOINT": ("https://cloud.example/", "cloud.tinker_endpoint", "https://cloud.example"),
    "TINKER_BASE_URL": ("https://cloud.example/", "cloud.tinker_endpoint", "https://cloud.example"),
    "ENV_TYPE": ("terminal", "env.type", "terminal"),
    "MAX_STEPS": ("30", "env.max_steps", 30),
    "PARALLEL_ENVS": ("32", "env.parallel", 32),
    "SCREENSHOT_BACKEND": ("selenium", "env.screenshot_backend", "selenium"),
    "TOOLS_CONFIG": ("tools.json", "env.tools_config", Path("tools.json")),
    "SWE_BENCH_PATH": ("bench", "env.swe_bench_path", Path("bench")),
}


# Known names


def test_every_known_environment_name_of_the_product_is_in_the_table() -> None:
    assert ENVIRONMENT.keys() == KNOWN_NAMES.keys()
    assert set(GROUPS) == {"CKPT_ARGS", "ROLLOUT_ARGS", "OPTIMIZER_ARGS", "LORA_ARGS"}


@pytest.mark.parametrize("name", KNOWN_NAMES)
def test_a_known_environment_name_sets_its_setting_and_says_so(name: str) -> None:
    text, path, value = KNOWN_NAMES[name]
    resolved = load(environ={name: text})
    assert get(resolved.config, path) == in_full(value)
    assert resolved.sources[path] == f"environment {name}"
    assert resolved.notes[0] == f"environment {name} is taken for {path}"


def test_of_two_names_of_one_setting_the_first_wins_and_it_is_said() -> None:
    resolved = load(environ={"HF_CKPT": "b", "MODEL_PATH": "a"})
    assert resolved.config.policy.model == "a"
    assert (
        "environment HF_CKPT is not taken: MODEL_PATH sets policy.model too, differs, and comes first" in resolved.notes
    )


def test_two_names_of_one_setting_that_agree_need_no_words() -> None:
    assert load(environ={"MAJORITY_VOTE_N": "5", "PRM_M": "05"}).notes == (
        "environment MAJORITY_VOTE_N is taken for judge.llm.votes",
    )


def test_a_known_name_that_the_file_overrules_is_said_to_be_so(tmp_path: Path) -> None:
    file = written(tmp_path, "judge.llm.votes = 7")
    assert load(file=file, environ={"PRM_M": "5"}).notes == (
        f"environment PRM_M is not taken: file {file} sets judge.llm.votes",
    )


def test_an_empty_environment_name_says_nothing() -> None:
    assert load(environ={"MAX_STEPS": "", "LORA_ARGS": " ", "MODEL_PATH": "  "}).config == Config()


def test_a_misspelled_name_of_the_family_is_noted_with_the_nearest() -> None:
    notes = load(environ={"OPENCLAW_TOPK_SUBSETMODE": "teacher"}).notes
    assert notes == (
        "environment 'OPENCLAW_TOPK_SUBSETMODE' is not known; the nearest known name is 'OPENCLAW_TOPK_SUBSET_MODE'",
    )


def test_of_the_two_names_of_a_teacher_the_one_in_hugging_face_form_wins() -> None:
    resolved = load(environ={"PRM_TEACHER_LOAD": "t/torch_dist", "PRM_TEACHER_HF": "t/teacher"})
    assert resolved.config.train.loss.teacher_model == "t/teacher"
    assert resolved.notes[0].startswith("environment PRM_TEACHER_LOAD is not taken: PRM_TEACHER_HF sets")


def test_the_reference_is_the_base_model_and_any_other_is_refused(tmp_path: Path) -> None:
    converted = tmp_path / "torch_dist"
    converted.mkdir()
    same = load(environ={"MODEL_PATH": "./m", "REF_LOAD": str(Path("m").absolute())})
    assert same.notes[-1].startswith("environment REF_LOAD is the base model: the reference of the KL penalty is")
    assert refused(environ={"REF_LOAD": str(converted)}).startswith(
        f"environment REF_LOAD = {converted}: is no model in Hugging Face form (it has no config.json); the reference"
    )
    (converted / "config.json").write_text("{}")
    assert "names other weights than policy.model, which is embedded" in refused(environ={"REF_LOAD": str(converted)})
    assert "REF_LOAD = /not/there: is not there" in refused(environ={"REF_LOAD": "/not/there"})
    assert refused(environ={"REF_LOAD": "Qwen/Qwen3-4B"}).endswith(": unset it, or name that model")


def test_one_clip_alone_leaves_the_other_as_it_is_and_says_so() -> None:
    alone = load(environ={"OPTIMIZER_ARGS": "--eps-clip 0.1"})
    assert (alone.config.train.loss.eps_low, alone.config.train.loss.eps_high) == (0.1, 0.28)
    assert alone.notes[-1] == "--eps-clip sets the lower clip alone: the upper stays 0.28 (--eps-clip-high)"
    assert load(environ={}, flags={"--eps-clip": 0.1, "--eps-clip-high": 0.1}).notes == ()


def test_where_the_teacher_runs_is_fixed_and_said() -> None:
    name = "OPENCLAW_COMBINE_OPD_TEACHER_SOURCE"
    assert load(environ={name: "trainer"}).notes == ()
    assert load(environ={name: "server"}).notes == (
        f"environment {name} = server changes nothing: the teacher always runs in the trainer",
    )


def test_a_setting_of_environments_without_one_is_said_to_change_nothing() -> None:
    said = "env.parallel changes nothing: no environment is set (env.type, ENV_TYPE)"
    assert said in load(environ={"PARALLEL_ENVS": "8"}).notes
    assert said not in load(environ={"PARALLEL_ENVS": "8", "ENV_TYPE": "a.py:Env"}).notes


def test_a_folder_of_weights_is_kept_in_full_and_a_hub_id_as_it_stands() -> None:
    elsewhere = Path.cwd()
    (elsewhere / "org" / "here").mkdir(parents=True)
    (elsewhere / "embedded").mkdir()
    for said, kept in {
        "./m": str(elsewhere / "m"),
        "org/here": str(elsewhere / "org" / "here"),
        "Qwen/Qwen3-4B": "Qwen/Qwen3-4B",
        "embedded": "embedded",
    }.items():
        assert load(environ={"MODEL_PATH": said}).config.policy.model == kept
        assert load(environ={"PRM_TEACHER_HF": said}).config.train.loss.teacher_model == kept


def test_grouped_names_hold_flags_as_a_shell_writes_them() -> None:
    resolved = load(
        environ={
            "CKPT_ARGS": "--save-dir 'my saves' --save-interval=5 --resume-from-checkpoint saves/3",
            "ROLLOUT_ARGS": "--rollout-batch-size 32 --num-rollouts-per-prompt 8",
            "OPTIMIZER_ARGS": "--lr 1e-5 --weight-decay 0.1 --adam-beta1 0.8 --adam-beta2 0.98 --offload-optimizer-state",
            "LORA_ARGS": "--no-use-lora --lora-rank 4 --lora-rank 8 --lora-alpha 16 --lora-dropout 0.05",
        }
    )
    train = resolved.config.train
    assert (train.save_dir, train.save_interval, train.resume) == (
        Path("my saves").absolute(),
        5,
        Path("saves/3").absolute(),
    )
    assert (train.batch_size, train.num_rollouts_per_prompt) == (32, 8)
    assert (train.optim.lr, train.optim.weight_decay, train.optim.adam_beta1, train.optim.adam_beta2) == (
        1e-5,
        0.1,
        0.8,
        0.98,
    )
    assert (train.local.offload_optimizer, train.lora.enabled) == (True, False)
    assert (train.lora.rank, train.lora.alpha, train.lora.dropout) == (8, 16.0, 0.05)
    assert resolved.sources["train.optim.lr"] == "environment OPTIMIZER_ARGS --lr"


def test_a_name_of_its_own_outranks_the_same_setting_in_a_group() -> None:
    resolved = load(environ={"CKPT_SAVE_DIR": "a", "CKPT_ARGS": "--save-dir b"})
    assert resolved.config.train.save_dir == Path("a").absolute()
    assert any("CKPT_ARGS --save-dir is not taken" in note for note in resolved.notes)


def test_a_group_that_cannot_be_read_says_why_for_each_fault() -> None:
    groups = {
        "CKPT_ARGS": "--save-dir 'open",
        "OPTIMIZER_ARGS": "lr 1 --lr x",
        "LORA_ARGS": "--lora-rnk 8 --lora-alpha",
    }
    assert refused(environ=groups).splitlines() == [
        "environment CKPT_ARGS: cannot be read as flags: no closing quotation",
        "'lr' is not known; the nearest known name is '--lr' (environment OPTIMIZER_ARGS)",
        'train.optim.lr = "x" (environment OPTIMIZER_ARGS --lr): must be a number above 0 and of at most 1',
        "'--lora-rnk' is not known; the nearest known name is '--lora-rank' (environment LORA_ARGS)",
        "environment LORA_ARGS: --lora-alpha needs a value",
    ]


# Flags


def test_every_flag_of_the_product_is_in_the_table() -> None:
    assert set(PRODUCT_FLAGS) <= FLAGS.keys()
    assert all(flag.path in SETTINGS and flag.help for flag in FLAGS.values())


def test_a_flag_knows_the_type_of_its_value_and_its_opposite() -> None:
    assert (FLAGS["--port"].type, FLAGS["--port"].negative) == (int, None)
    assert (FLAGS["--lr"].type, FLAGS["--save-dir"].type, FLAGS["--eval-tasks"].type) == (float, str, str)
    assert FLAGS["--enable-rl-intercept"].type is bool
    assert FLAGS["--enable-rl-intercept"].negative == "--no-enable-rl-intercept"


def test_flags_take_typed_values_and_text_alike() -> None:
    typed = load(environ={}, flags={"--enable-rl-intercept": False, "--lr": 1e-5, "--eval-tasks": "coding, tool-use"})
    text = load(environ={}, flags={"--enable-rl-intercept": "false", "--lr": "1e-5", "--eval-tasks": "coding,tool-use"})
    assert typed == text
    assert typed.config.eval.tasks == ("coding", "tool-use")
    assert typed.config.serve.intercept is False


# The table of names


def test_every_name_of_the_table_is_one_that_is_read_and_the_manual_shows_it() -> None:
    from openclaw_rl.cli.names import known_names, names_table

    listed = [each.name for each in known_names()]
    assert set(listed) == {*ENVIRONMENT, *STATED, *GROUPS, *FLAGS}
    assert len(listed) == len(set(listed))
    page = (Path(__file__).parents[1] / "docs" / "coming-from.md").read_text()
    assert names_table() in page, "write the table anew: openclaw-rl config --names"
