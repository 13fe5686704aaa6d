"""The settings: their defaults, who wins, and how text becomes a value."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from configs import UNHURRIED, refused, shown_rows, written
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from openclaw_rl import config
from openclaw_rl.config import SETTINGS, load, sources
from openclaw_rl.config.settings import Config
from openclaw_rl.config.shown import get, literal

pytestmark = pytest.mark.usefixtures("elsewhere")


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


@pytest.mark.parametrize(("preset", "group"), [("env", 8), ("cpu-env", 4), ("cpu-env,cpu-gui", 4)])
def test_presets_of_environments_compare_episodes_that_differ(preset: str, group: int) -> None:
    config = load(preset=preset, flags={"--env": "terminal"}, environ={}).config
    assert (config.train.num_rollouts_per_prompt, config.train.batch_size % 8, config.train.method) == (
        group,
        0,
        "binary",
    )
    assert config.policy.sampling.temperature == 1.0


@pytest.mark.parametrize("preset", config.presets())
def test_every_preset_loads_and_names_itself_as_source(preset: str) -> None:
    assert f"preset {preset}" in load(preset=preset, environ={}).sources.values()


def test_of_several_presets_the_later_wins_and_a_misspelled_one_is_named() -> None:
    both = load(preset="qwen3-4b-topk-select, binary,lora", environ={})
    assert (both.config.policy.model, both.config.train.method) == ("Qwen/Qwen3-4B", "binary")
    assert (both.sources["train.method"], both.config.train.lora.enabled) == ("preset binary", True)
    assert "'lorra' is not known; the nearest known name is 'lora'" in refused(preset="qwen3-8b,lorra")


def test_the_cpu_demo_trains_small_averaged_batches_with_a_pull_to_the_base() -> None:
    train = load(preset="cpu-demo", environ={}).config.train
    assert (train.batch_size, train.optim.average, train.loss.kl, train.lora.enabled) == (4, 4, "full", True)
    assert train.loss.kl_coef > 0
    assert train.remember > 0


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
        "env.pages",
        "env.folder",
        "env.swe_bench_path",
        "policy.engine_python",
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
