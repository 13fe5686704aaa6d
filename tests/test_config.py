"""The settings: who wins, what is refused and how it is said, and that no secret is ever shown."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from openclaw_rl import config
from openclaw_rl.config import ENVIRONMENT, FLAGS, GROUPS, SETTINGS, Resolved, load, sources
from openclaw_rl.config.names import FIRST, SECTIONS
from openclaw_rl.config.renamed import FIXED, MOVED, refusal
from openclaw_rl.config.settings import Config
from openclaw_rl.config.shown import get, literal
from openclaw_rl.errors import ConfigError

UNHURRIED = settings(deadline=None, max_examples=50)

PRODUCT_FLAGS = [
    "--host",
    "--port",
    "--enable-rl-intercept",
    "--run-dir",
    "--rl-buffer-dir",
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
    "JUDGE_MODEL_PATH": ("a/judge", "judge.llm.model", "a/judge"),
    "PRM_MODEL_PATH": ("a/judge", "judge.llm.model", "a/judge"),
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
    "ENV_TYPE": ("terminal", "env.type", "terminal"),
    "MAX_STEPS": ("30", "env.max_steps", 30),
    "PARALLEL_ENVS": ("32", "env.parallel", 32),
    "SCREENSHOT_BACKEND": ("selenium", "env.screenshot_backend", "selenium"),
    "TOOLS_CONFIG": ("tools.json", "env.tools_config", Path("tools.json")),
    "SWE_BENCH_PATH": ("bench", "env.swe_bench_path", Path("bench")),
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


def refused(**sources: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**{"environ": {}, **sources})  # type: ignore[arg-type]
    return str(caught.value)


def in_full(value: object) -> object:
    """A path as the settings keep it."""
    if isinstance(value, tuple):
        return tuple(in_full(each) for each in value)
    return value.absolute() if isinstance(value, Path) else value


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text)
    return file


def shown_rows(resolved: Resolved) -> list[config.Row]:
    return [row for rows in config.render(resolved).values() for row in rows]


def everything_shown(resolved: Resolved) -> str:
    """All that a user, a log or a file may get to see."""
    rows = "\n".join(" ".join(row) for row in shown_rows(resolved))
    return "\n".join(
        [rows, json.dumps(config.as_json(resolved)), repr(resolved), str(resolved.config), config.template()]
    )


# Defaults


def test_without_any_source_every_setting_is_its_default() -> None:
    resolved = load(environ={})
    assert resolved.config == Config()
    assert set(resolved.sources) == set(SETTINGS)
    assert set(resolved.sources.values()) == {"default"}
    assert resolved.notes == ()


def test_the_defaults_are_those_of_the_methods_page() -> None:
    train, judge = load(environ={}).config.train, load(environ={}).config.judge
    assert (train.method, train.loss.w_rl, train.loss.w_opd, train.loss.k, train.loss.clip) == (
        "topk",
        1.0,
        1.0,
        4,
        1.0,
    )
    assert (train.loss.hint_selection, train.loss.subset, train.loss.aggregate) == (
        "sequence_optimal",
        "student",
        "token",
    )
    assert (train.loss.eps_low, train.loss.eps_high, train.loss.kl, train.loss.kl_coef) == (0.2, 0.28, "full", 0.05)
    assert (train.advantage, train.normalize, train.baseline_decay, train.max_lag) == ("baseline", False, 0.95, 4)
    assert (train.batch_size, train.max_wait, train.train_truncated, train.loss.teacher) == (16, 600.0, False, "base")
    assert (train.lora.rank, train.lora.alpha, train.optim.grad_clip) == (16, 32.0, 1.0)
    assert (
        train.loss.max_mismatch,
        train.alarms.gap,
        train.alarms.ess,
        train.alarms.norm,
        train.alarms.pause_after,
    ) == (
        2,
        0.05,
        0.3,
        10,
        3,
    )
    assert (
        judge.llm.votes,
        judge.llm.threshold,
        judge.llm.quorum,
        judge.max_hints,
        judge.hint_min,
        judge.hint_max,
    ) == (
        3,
        0.5,
        None,
        3,
        11,
        600,
    )


def test_the_tree_cannot_be_changed_and_travels_to_other_processes() -> None:
    resolved = load(environ={"OPENCLAW_API_KEY": "one"})
    with pytest.raises(ValueError, match="frozen"):
        resolved.config.serve.port = 1
    assert pickle.loads(pickle.dumps(resolved)) == resolved


@pytest.mark.parametrize("path", SETTINGS)
def test_every_setting_says_what_it_does_and_what_it_expects(path: str) -> None:
    assert len(SETTINGS[path].description) > 5
    assert len(SETTINGS[path].expects) > 3


# Rank

RANKS = ("preset", "known", "file", "named", "set", "flag")
SOURCES = {
    "preset": "preset ranked",
    "known": "environment OPENCLAW_PORT",
    "file": "file {}",
    "named": "environment OPENCLAW_RL__SERVE__PORT",
    "set": "--set",
    "flag": "flag --port",
}


@UNHURRIED
@given(said=st.sets(st.sampled_from(RANKS)))
def test_the_highest_rank_that_speaks_wins_and_is_named(
    said: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "ranked.toml").write_text("serve.port = 1")
    file = written(folder, "serve.port = 3" if "file" in said else "")
    names = {"known": "OPENCLAW_PORT", "named": "OPENCLAW_RL__SERVE__PORT"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_PRESETS", folder)
        resolved = load(
            preset="ranked" if "preset" in said else None,
            file=file,
            environ={names[each]: str(RANKS.index(each) + 1) for each in said & names.keys()},
            sets=["serve.port=5"] if "set" in said else [],
            flags={"--port": 6} if "flag" in said else {},
        )
    winner = max(said, key=RANKS.index, default=None)
    assert resolved.config.serve.port == (RANKS.index(winner) + 1 if winner else 30000)
    assert resolved.sources["serve.port"] == (SOURCES[winner].format(file) if winner else "default")


def test_sources_of_different_settings_add_up(tmp_path: Path) -> None:
    file = written(tmp_path, "[train.loss]\nk = 8\n[train.lora]\nrank = 4")
    resolved = load(file=file, environ={"PRM_M": "5"}, sets=["train.lora.alpha=8"], flags={"--lora-dropout": 0.1})
    lora = resolved.config.train.lora
    assert (lora.rank, lora.alpha, lora.dropout, resolved.config.train.loss.k, resolved.config.judge.llm.votes) == (
        4,
        8,
        0.1,
        8,
        5,
    )


def test_the_file_of_the_working_directory_is_taken_unasked() -> None:
    Path("openclaw-rl.toml").write_text("judge.llm.votes = 9")
    resolved = load(environ={})
    assert resolved.config.judge.llm.votes == 9
    assert resolved.sources["judge.llm.votes"] == "file openclaw-rl.toml"


def test_of_two_settings_on_the_command_line_the_later_wins() -> None:
    assert load(environ={}, sets=["serve.port=1", "serve.port=2"]).config.serve.port == 2


def test_the_real_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_RL__JUDGE__LLM__VOTES", "11")
    assert load().config.judge.llm.votes == 11


@pytest.mark.parametrize("preset", ["cpu-demo", "qwen3-4b-topk-select", "qwen3-4b-lora"])
def test_every_preset_loads_and_names_itself_as_source(preset: str) -> None:
    assert preset in config.presets()
    resolved = load(preset=preset, environ={})
    assert resolved.sources["policy.model"] == f"preset {preset}"


def test_the_cpu_demo_trains_small_averaged_batches_with_a_pull_to_the_base() -> None:
    train = load(preset="cpu-demo", environ={}).config.train
    assert (train.batch_size, train.optim.average, train.loss.kl, train.lora.enabled) == (4, 4, "full", True)
    assert train.loss.kl_coef > 0
    assert train.remember > 0


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


# Text and types


@pytest.mark.parametrize("path", SETTINGS)
def test_a_default_typed_on_the_command_line_or_named_in_the_environment_is_that_default(path: str) -> None:
    setting = SETTINGS[path]
    named = f"OPENCLAW_RL__{path.replace('.', '__').upper()}"
    for resolved in (
        load(environ={}, sets=[f"{path}={literal(setting.default)}"]),
        load(environ={named: "" if setting.default is None else literal(setting.default)}),
    ):
        assert get(resolved.config, path) == setting.default


@UNHURRIED
@given(
    text=st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1).filter(
        lambda text: text == text.strip()
    )
)
def test_any_text_comes_back_from_a_file_as_it_was(text: str) -> None:
    assert tomllib.loads(f"value = {literal(text)}") == {"value": text}
    assert load(environ={}, sets=[f"serve.model_name={literal(text)}"]).config.serve.model_name == text


def test_text_that_looks_like_a_number_stays_text_where_text_is_wanted() -> None:
    resolved = load(environ={"OPENCLAW_API_KEY": "007"}, sets=["serve.model_name=1e3", "judge.llm.model=true"])
    assert resolved.config.serve.model_name == "1e3"
    assert resolved.config.judge.llm.model == "true"
    assert resolved.config.serve.api_key == SecretStr("007")


def test_the_empty_text_takes_an_optional_setting_back(tmp_path: Path) -> None:
    file = written(tmp_path, 'serve.model_name = "a"\npolicy.context = 4096')
    resolved = load(file=file, environ={"OPENCLAW_RL__POLICY__CONTEXT": ""}, sets=["serve.model_name="])
    assert (resolved.config.serve.model_name, resolved.config.policy.context) == (None, None)
    assert resolved.sources["serve.model_name"] == "--set"


def test_a_home_folder_is_spelled_out() -> None:
    assert load(environ={}, sets=["run.dir=~/runs"]).config.run.dir == Path.home() / "runs"


PATHS = [path for path, setting in SETTINGS.items() if setting.holds_paths]


@pytest.mark.parametrize("path", PATHS)
def test_a_relative_path_starts_at_the_working_directory_whoever_names_it(path: str, tmp_path: Path) -> None:
    named = f"OPENCLAW_RL__{path.replace('.', '__').upper()}"
    for resolved in (
        load(environ={}, sets=[f"{path}=./sub/x"]),
        load(environ={named: "sub/x"}),
        load(
            environ={},
            file=written(tmp_path, f"{path} = {literal(['sub/x']) if path == 'train.data' else literal('sub/x')}"),
        ),
    ):
        found = get(resolved.config, path)
        assert found in (Path.cwd() / "sub" / "x", (Path.cwd() / "sub" / "x",))


def test_the_settings_that_hold_paths_are_these() -> None:
    assert set(PATHS) == {
        "run.dir",
        "serve.keys_file",
        "policy.chat_template",
        "judge.llm.prompts_dir",
        "train.data",
        "train.save_dir",
        "train.resume",
        "env.tools_config",
        "env.swe_bench_path",
    }


def test_a_path_of_a_file_elsewhere_that_means_two_things_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, 'run.dir = "runs"')
    assert load(file=file, environ={}).config.run.dir == Path("runs").absolute()
    (tmp_path / "runs").mkdir()
    said = refused(file=file)
    assert said == (
        f'run.dir = "runs" (file {file}): means two things: a relative path starts at the working directory, '
        f"which makes it {Path('runs').absolute()}, but {tmp_path / 'runs'} is there beside the file; write it in full"
    )
    file.write_text(f"run.dir = {literal(tmp_path / 'runs')}")
    assert load(file=file, environ={}).config.run.dir == tmp_path / "runs"


def test_options_of_plugins_are_free_and_join_from_all_ranks(tmp_path: Path) -> None:
    file = written(tmp_path, '[policy.options]\nname = "x"\n"with.dot" = 1\ndeep = { a = 1 }')
    resolved = load(file=file, environ={"OPENCLAW_RL__POLICY__OPTIONS__SIZE": "3"}, sets=["policy.options.name=y"])
    assert resolved.config.policy.options == {"name": "y", "with.dot": 1, "deep": {"a": 1}, "size": 3}
    assert resolved.sources["policy.options.name"] == "--set"
    assert ("policy.options.size", "3", "environment OPENCLAW_RL__POLICY__OPTIONS__SIZE") in shown_rows(resolved)


def test_a_whole_section_may_be_set_at_once() -> None:
    lora = load(environ={}, sets=["train.lora={ rank = 4, alpha = 8 }"]).config.train.lora
    assert (lora.rank, lora.alpha) == (4, 8.0)


# Refusals

WORD = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12).filter(
    lambda word: "__" not in word and word.strip("_") == word
)


@UNHURRIED
@given(section=st.sampled_from([*SECTIONS, ""]), word=WORD)
def test_any_unknown_key_is_refused_with_a_known_name(
    section: str, word: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = f"{section}.{word}" if section else word
    if path in SETTINGS or path in SECTIONS or refusal(path):
        return
    file = written(tmp_path_factory.getbasetemp(), f"{path} = 1")
    named = f"OPENCLAW_RL__{path.upper().replace('.', '__')}"
    said = refused(file=file, environ={named: "1"}, sets=[f"{path}=1"]).splitlines()
    known = "|".join(re.escape(each) for each in (*SECTIONS, *SETTINGS))
    for line, source in zip(said, (f"file {file}", f"environment {named}", "--set"), strict=True):
        assert re.fullmatch(
            rf"'{path}' is not known; the nearest known name is '({known})' \({re.escape(source)}\)", line
        )


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("serv.port", "serve.port"),
        ("port", "serve.port"),
        ("train.rank", "train.lora.rank"),
        ("train.optm.lr", "train.optim.lr"),
        ("jugde", "judge"),
        ("train.batchsize", "train.batch_size"),
    ],
)
def test_the_nearest_name_is_the_one_that_was_meant(said: str, meant: str) -> None:
    assert f"the nearest known name is {meant!r}" in refused(sets=[f"{said}=1"])


@pytest.mark.parametrize("old", [*MOVED, *FIXED])
def test_a_key_of_an_earlier_release_is_refused_with_its_present_name(old: str, tmp_path: Path) -> None:
    now = MOVED.get(old, "")
    assert old not in SETTINGS
    assert now in SETTINGS or now in SECTIONS or old in FIXED
    wanted = (
        f"{old} is now {now} (" if now else f"{old} is no setting any more, it is fixed: {FIXED[old]}; take it out ("
    )
    named = f"OPENCLAW_RL__{old.upper().replace('.', '__')}"
    file = written(tmp_path, f'{old} = "1"')
    for line in refused(file=file, environ={named: "1"}, sets=[f"{old}=1"]).splitlines():
        assert line.startswith((wanted, "watch is now monitor ("))  # a file's [watch] is refused as a whole


def test_a_learning_rate_of_an_earlier_release_is_refused_in_these_words() -> None:
    assert refused(sets=["train.lr=1"]) == "train.lr is now train.optim.lr (--set)"
    assert refused(sets=["train.loss=mine.py:loss"]) == "train.loss is now train.loss.custom (--set)"


LIMITED = [
    (path, name, getattr(rule, name))
    for path, setting in SETTINGS.items()
    for rule in setting.field.metadata
    for name in ("ge", "gt", "le", "lt")
    if hasattr(rule, name)
]


@UNHURRIED
@given(limit=st.sampled_from(LIMITED), far=st.integers(1, 1000))
def test_a_value_out_of_range_is_refused_with_field_value_range_and_source(
    limit: tuple[str, str, float], far: int
) -> None:
    path, rule, bound = limit
    value = bound - far if rule in ("ge", "gt") else bound + far
    said = refused(sets=[f"{path}={value}"])
    assert said.startswith(f"{path} = {value} (--set): must be a ")
    assert str(bound) in said.partition("must be")[2]


def test_the_bound_itself_is_taken_or_refused_as_declared() -> None:
    assert load(environ={}, sets=["serve.port=65535", "judge.llm.threshold=1"]).config.judge.llm.threshold == 1.0
    assert (
        refused(flags={"--port": 65536}) == "serve.port = 65536 (flag --port): must be a whole number from 0 to 65535"
    )
    assert (
        refused(sets=["judge.llm.threshold=0"])
        == "judge.llm.threshold = 0 (--set): must be a number above 0 and of at most 1"
    )


@pytest.mark.parametrize(
    ("path", "text", "what"),
    [
        ("serve.port", "abc", "a whole number from 0 to 65535"),
        ("serve.port", "true", "a whole number from 0 to 65535"),
        ("serve.port", "1.5", "a whole number from 0 to 65535"),
        ("train.optim.lr", "nan", "a number above 0 and of at most 1"),
        ("run.record", "maybe", "true or false"),
        ("train.method", "ppo", "one of topk, binary, opd, distill, combine"),
        ("eval.tasks", "coding,chess", "a list of any of conversation, coding, tool-use"),
        ("policy.device", "gpu", "one of auto, cpu, mps, cuda or cuda:N"),
        ("judge.llm.base_url", "localhost:8000", "an http:// or https:// address"),
        ("gpus.train", "0,0", "a count of at least 0, or a list of different device numbers"),
        ("gpus.train", "-1", "a count of at least 0, or a list of different device numbers"),
        ("serve.host", "", "text of at least 1 character"),
        ("policy.options", "3", "a table"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_with_what_was_expected(path: str, text: str, what: str) -> None:
    named = f"OPENCLAW_RL__{path.upper().replace('.', '__')}"
    said = refused(environ={named: text})
    assert said.startswith(f"{path} = ")
    assert f"(environment {named}): must be {what}" in said


def test_a_wrong_value_is_refused_even_when_a_later_rank_replaces_it() -> None:
    assert "(environment OPENCLAW_PORT)" in refused(environ={"OPENCLAW_PORT": "abc"}, flags={"--port": 1})


def test_all_that_is_wrong_is_said_at_once_one_line_each(tmp_path: Path) -> None:
    file = written(tmp_path, "serve = 3\n[train.loss]\nk = 0\n[judge]\nvots = 1")
    said = refused(
        preset="gpu-demo",
        file=file,
        environ={"MAX_STEPS": "many"},
        sets=["nonsense", "train.optim.lr=0"],
        flags={"--prt": 1},
    )
    assert len(said.splitlines()) == 8
    for part in (
        "'gpu-demo'",
        'env.max_steps = "many"',
        "serve (file",
        "train.loss.k = 0",
        "'judge.vots'",
        "--set 'nonsense'",
        "train.optim.lr = 0",
        "'--prt'",
    ):
        assert part in said


def test_a_broken_file_is_named_with_the_line(tmp_path: Path) -> None:
    file = written(tmp_path, "[serve]\nport = 1\nhost = oops\n")
    assert re.fullmatch(rf"file {re.escape(str(file))}: is not valid TOML: .*line 3.*", refused(file=file))


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    assert "there is no such file; write one with: openclaw-rl init" in refused(file=tmp_path / "none.toml")
    assert "cannot be read: Is a directory" in refused(file=tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"a = \xff")
    assert "is not UTF-8 text (at byte 4)" in refused(file=tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["judge.llm.quorum=4"], "judge.llm.quorum = 4 (--set): must be at most judge.llm.votes, which is 3"),
        (["judge.hint_max=5"], "judge.hint_min = 11 (default): must be at most judge.hint_max, which is 5"),
        (
            ["train.loss.w_rl=0", "train.loss.w_opd=0"],
            "train.loss.w_rl = 0.0 (--set): must be above 0 when train.loss.w_opd is 0: nothing would be learned",
        ),
        (
            ["gpus.total=4", "gpus.train=4", "gpus.judge=1"],
            "gpus.total = 4 (--set): must be at least 5, the sum of the GPUs given out",
        ),
        (
            ["gpus.total=2", "gpus.train=[1,2]"],
            "gpus.train = [1, 2] (--set): must name devices below gpus.total, which is 2",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(sets: list[str], said: str) -> None:
    assert refused(sets=sets) == said


def test_two_zero_weights_are_fine_for_a_method_that_reads_neither() -> None:
    assert (
        load(environ={}, sets=["train.loss.w_rl=0", "train.loss.w_opd=0", "train.method=binary"]).config.train.loss.w_rl
        == 0
    )


def test_all_gpus_may_be_given_out_and_one_may_be_shared_by_name() -> None:
    sets = ["gpus.total=4", "gpus.train=3", "gpus.rollout=1", "gpus.judge=[3]", "gpus.teacher=[3]"]
    assert load(environ={}, sets=sets).config.gpus.teacher == (3,)


# Secrets

SECRET = st.text("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", min_size=12, max_size=40)


@UNHURRIED
@given(
    secret=SECRET,
    way=st.sampled_from(["known", "named", "file", "set"]),
    path=st.sampled_from(["serve.api_key", "cloud.tinker_api_key", "judge.options.api_key"]),
)
def test_a_secret_is_shown_nowhere(secret: str, way: str, path: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    known = {ENVIRONMENT[name]: name for name in ("OPENCLAW_API_KEY", "TINKER_API_KEY")}
    named = f"OPENCLAW_RL__{path.upper().replace('.', '__')}"
    environ = {known.get(path, named) if way == "known" else named: secret} if way in ("known", "named") else {}
    file = written(tmp_path_factory.getbasetemp(), f'{path} = "{secret}"' if way == "file" else "")
    resolved = load(file=file, environ=environ, sets=[f"{path}={secret}"] if way == "set" else [])
    assert secret not in everything_shown(resolved)
    rows = {row.path: row.value for row in shown_rows(resolved)}
    assert rows[path].strip('"') == "(set)"


@UNHURRIED
@given(secret=SECRET)
def test_a_secret_that_is_refused_is_not_shown_either(secret: str) -> None:
    sets = [
        f'serve={{ api_key = ["{secret}"] }}',
        f'serve.api_kee="{secret}"',
        f"serve={secret}",
        f"judge.llm.api_key_env=sk-{secret}",
        f"judge.llm.base_url=http://me:{secret}@host/v1",
        f"judge.workers={{ api_key = '{secret}' }}",
    ]
    said = refused(sets=sets)
    assert len(said.splitlines()) == 6
    assert secret not in said


def test_a_secret_in_a_file_that_everybody_can_read_is_noted(tmp_path: Path) -> None:
    file = written(tmp_path, 'serve.api_key = "one"')
    file.chmod(0o644)
    assert load(file=file, environ={}).notes == (
        f"serve.api_key is a secret and everybody on this machine can read {file}: chmod 600 it",
    )
    file.chmod(0o600)
    assert load(file=file, environ={}).notes == ()


def test_a_secret_typed_on_the_command_line_is_noted() -> None:
    assert "where others can see it" in load(environ={}, sets=["serve.api_key=one"]).notes[0]


def test_a_full_tune_has_a_tenth_of_an_adapters_rate_unless_it_is_given_one() -> None:
    assert load(environ={}).config.train.learning_rate == 5e-4
    assert load(environ={}, flags={"--use-lora": False}).config.train.learning_rate == 5e-5
    assert load(environ={}, flags={"--use-lora": False, "--lr": 3e-6}).config.train.learning_rate == 3e-6


# Keys


def keys(tmp_path: Path, name: str, text: str, **environ: str) -> dict[str, str]:
    file = tmp_path / name
    file.write_text(text)
    file.chmod(0o600)
    return dict(config.api_keys(load(environ=environ, sets=[f"serve.keys_file={file}"]).config))


def test_without_a_key_there_are_no_keys() -> None:
    assert config.api_keys(Config()) == {}


def test_keys_come_from_the_environment_and_from_lines(tmp_path: Path) -> None:
    found = keys(tmp_path, "keys", "# ours\nu1: k1\n\nu2:k:2\nu1:k3\n", OPENCLAW_API_KEY="k0")
    assert found == {"k0": "default", "k1": "u1", "k:2": "u2", "k3": "u1"}


def test_keys_come_from_toml(tmp_path: Path) -> None:
    assert keys(tmp_path, "keys.toml", 'u1 = "k1"\nu2 = ["k2", "k3"]') == {"k1": "u1", "k2": "u2", "k3": "u2"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("keys", "u1:k1\nSECRET\n", "line 2: needs a user and a key; write one user:key to a line"),
        ("keys", "u1:SECRET\nu2:SECRET", "line 2: u2 and u1 have the same key"),
        ("keys.toml", 'u1 = "SECRET', "is not valid TOML"),
        ("keys.toml", 'u1 = ["SECRET", 3]', "u1 must be a key or a list of keys, as text"),
    ],
)
def test_a_wrong_keys_file_is_refused_without_showing_a_key(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys(tmp_path, name, text)
    assert said in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_keys_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    resolved = load(environ={}, sets=[f"serve.keys_file={tmp_path / 'none'}"])
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        config.api_keys(resolved.config)


def test_a_keys_file_that_everybody_can_read_is_noted(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("u1:k1")
    (tmp_path / "keys").chmod(0o644)
    assert (
        "everybody on this machine can read the keys"
        in load(environ={}, sets=[f"serve.keys_file={tmp_path / 'keys'}"]).notes[0]
    )


# What is shown


def test_the_template_changes_nothing_as_it_stands(tmp_path: Path) -> None:
    assert load(file=written(tmp_path, config.template()), environ={}) == load(environ={})


def test_the_template_with_every_setting_uncommented_is_the_defaults(tmp_path: Path) -> None:
    bare = re.sub(r"^#([\w.]+ = )", r"\1", config.template(), flags=re.MULTILINE)
    file = written(tmp_path, bare)
    resolved = load(file=file, environ={})
    assert resolved.config == Config()
    tables = {path for path, setting in SETTINGS.items() if setting.kind == "table"}
    assert {path for path, source in resolved.sources.items() if source == f"file {file}"} == SETTINGS.keys() - tables


@UNHURRIED
@given(paths=st.sets(st.sampled_from(sorted(SETTINGS)), max_size=8))
def test_any_part_of_the_template_may_be_uncommented(paths: set[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = []
    for line in config.template().splitlines():
        name = re.match(r"#([\w.]+) = ", line)
        lines.append(line[1:] if name and name[1] in paths else line)
    assert load(file=written(tmp_path_factory.getbasetemp(), "\n".join(lines)), environ={}).config == Config()


def test_the_template_says_what_a_setting_does_its_range_and_its_default() -> None:
    text = config.template()
    assert (
        "# port to listen on; 0 takes a free one\n# a whole number from 0 to 65535; default: 30000\n#serve.port = 30000\n"
        in text
    )
    assert sorted(re.findall(r"^#([\w.]+) = ", text, flags=re.MULTILINE)) == sorted(SETTINGS)


def test_the_ten_that_users_set_first_are_shown_first_and_the_rest_by_section() -> None:
    assert len(FIRST) == 10
    assert [row.path for row in shown_rows(load(environ={}))[:10]] == list(FIRST)
    assert re.findall(r"^#([\w.]+) = ", config.template(), flags=re.MULTILINE)[:10] == list(FIRST)
    heading, *sections = config.render(load(environ={}))
    assert heading == "the ten to begin with"
    assert [each.partition(":")[0] for each in sections] == list(SECTIONS)


def test_the_table_shows_every_setting_once_with_its_source() -> None:
    rows = shown_rows(load(environ={}, sets=["serve.port=1"], flags={"--rl-buffer-dir": "runs"}))
    assert sorted(row.path for row in rows) == sorted(SETTINGS)
    assert ("serve.port", "1", "--set") in rows
    assert ("run.dir", literal(Path("runs").absolute()), "flag --rl-buffer-dir") in rows
    assert ("serve.api_key", "(not set)", "default") in rows
    assert ("train.lora.alpha", "32.0", "default") in rows


def test_the_json_is_plain_and_whole() -> None:
    shown = json.loads(json.dumps(config.as_json(load(environ={"OPENCLAW_API_KEY": "one"}, sets=["gpus.train=0,1"]))))
    assert shown["config"]["serve"]["api_key"] == "(set)"
    assert shown["config"]["train"]["lora"]["rank"] == 16
    assert shown["config"]["gpus"]["train"] == [0, 1]
    assert shown["sources"]["serve.api_key"] == "environment OPENCLAW_API_KEY"
    taken, unused = shown["notes"]
    assert taken == "environment OPENCLAW_API_KEY is taken for serve.api_key"
    assert unused == "gpus.train is understood, but no part of this release uses it yet"


# The environment


def test_a_variable_is_read_by_name_and_empty_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY_OF_MINE", "v")
    monkeypatch.setenv("AN_EMPTY_ONE", "")
    assert (config.environment("A_KEY_OF_MINE"), config.environment("AN_EMPTY_ONE"), config.environment("NO_SUCH")) == (
        "v",
        None,
        None,
    )


def test_the_cache_folder_is_the_one_named_or_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENCLAW_RL_CACHE", str(tmp_path))
    assert config.cache_dir() == tmp_path
    monkeypatch.delenv("OPENCLAW_RL_CACHE")
    assert config.cache_dir().name == "openclaw-rl"


def test_importing_the_settings_pulls_in_nothing_heavy() -> None:
    code = (
        "import sys, openclaw_rl.config; print(*({'torch', 'transformers', 'starlette', 'numpy'} & sys.modules.keys()))"
    )
    source = str(Path(config.__file__).parents[2])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
