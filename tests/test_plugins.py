"""One door for built-ins and for a user's own file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl import plugins
from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.config import load
from openclaw_rl.errors import ConfigError, PluginError

EXAMPLES = Path(__file__).parents[1] / "examples"


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "mine.py"
    file.write_text(text)
    return str(file)


def test_a_name_a_module_and_a_file_lead_to_the_same_thing(tmp_path: Path) -> None:
    file = write(tmp_path, "from openclaw_rl.backends.fake import FakePolicy\n")
    for name in ("fake", "openclaw_rl.backends.fake:FakePolicy", f"{file}:FakePolicy"):
        assert plugins.resolve("policy", name) is FakePolicy


def test_a_plugin_gets_what_it_names_of_what_is_offered() -> None:
    policy = plugins.build("policy", "fake", offered={"context": 77, "device": "cuda"}, options={"name": "mine"})
    assert (policy.context, policy.name) == (77, "mine")


def test_an_option_it_does_not_take_is_refused_with_the_nearest() -> None:
    with pytest.raises(PluginError, match="policy 'fake' takes no option 'contxt', did you mean 'context'"):
        plugins.build("policy", "fake", offered={}, options={"contxt": 1})


def test_an_unknown_name_says_what_is_known_and_the_nearest() -> None:
    with pytest.raises(
        PluginError,
        match=r"no policy called 'fkae' \(did you mean 'fake'\?\); known: fake, local, sglang, tinker, vllm, or give 'module:attribute'",
    ):
        plugins.resolve("policy", "fkae")


SHAPELESS = """
class Judge:
    name = "mine"
    def verdict(self, case): ...

class Deaf:
    name = "deaf"
    def judge(self): ...

def rollout(env, chat): ...
def loss(): ...
number = 3
"""


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("judge", "Judge", "wrong shape: it has no 'judge'; see openclaw_rl.ports.Judge"),
        ("judge", "Deaf", "wrong shape: judge\\(\\) takes 0 positional arguments, not 1"),
        ("rollout", "rollout", "takes no argument 'task'; it takes no argument 'seed'"),
        ("loss", "loss", r"it takes \(\), not \(inputs\), \(inputs, config\) or \(policy_logits, "),
        ("generate", "number", "not callable"),
        ("env", "number", "not a class or a function"),
        ("env", "Absent", "has no 'Absent'"),
    ],
)
def test_a_plugin_of_the_wrong_shape_is_refused_with_what_is_missing(
    tmp_path: Path, kind: Any, name: str, words: str
) -> None:
    file = write(tmp_path, SHAPELESS)
    with pytest.raises(PluginError, match=words):
        plugins.build(kind, f"{file}:{name}", offered={}, options={})


FITTING = {
    "loss": "def compute_loss(policy_logits, reference_logits, rewards, advantages, config): ...",
    "judge": "def get_reward_model(config): ...",
    "rollout": "async def generate_rollout(env, chat, *, task, seed, group, max_steps): ...",
    "generate": "def generate(policy, prompt, sampling, *, version): ...",
    "env": "def make_env(): ...",
}


@pytest.mark.parametrize("kind", FITTING)
def test_a_bare_file_is_understood_by_the_published_names(tmp_path: Path, kind: Any) -> None:
    file = write(tmp_path, f"def helper(x): ...\n{FITTING[kind]}\n")
    name = FITTING[kind].partition("(")[0].rpartition(" ")[2]
    assert plugins.address(kind, file) == f"{file}:{name}"
    assert plugins.resolve(kind, file).__name__ == name


@pytest.mark.parametrize(
    ("kind", "example", "name"),
    [
        ("loss", "custom_loss.py", "loss"),
        ("judge", "custom_judge.py", "score"),
        ("env", "custom_env.py", "GuessTheNumber"),
        ("policy", "custom_policy.py", "Backwards"),
        ("rollout", "custom_rollout.py", "until_first_reward"),
        ("generate", "custom_generate.py", "with_house_rule"),
    ],
)
def test_under_no_published_name_the_one_thing_that_fits_is_taken(kind: Any, example: str, name: str) -> None:
    if kind == "loss":
        pytest.importorskip("torch")
    assert plugins.address(kind, f"{EXAMPLES}/{example}") == f"{EXAMPLES}/{example}:{name}"


def test_a_bare_file_with_nothing_or_with_several_says_what_it_has_and_what_is_expected(tmp_path: Path) -> None:
    none = write(tmp_path, "import json\ndef two(a, b): ...\ndef three(a, b, c): ...\n")
    with pytest.raises(PluginError) as caught:
        plugins.resolve("loss", none)
    assert str(caught.value) == (
        f"loss: nothing in {none} can be taken for one; it has two, three; "
        f"call it loss or compute_loss, or say which it is: '{none}:NAME'"
    )
    both = tmp_path / "both.py"
    both.write_text(f"def loss(inputs): ...\n{FITTING['loss']}\n")
    with pytest.raises(PluginError, match=r"both.py has several: loss, compute_loss; say which: '.*both.py:loss'"):
        plugins.resolve("loss", str(both))


def test_a_published_name_of_another_shape_is_refused_with_its_arguments(tmp_path: Path) -> None:
    file = write(tmp_path, "def compute_loss(logits, labels): ...\n")
    with pytest.raises(
        PluginError, match=r"mine.py:compute_loss' has the wrong shape: it takes \(logits, labels\), not"
    ):
        plugins.resolve("loss", file)
    slow = tmp_path / "theirs.py"
    slow.write_text("async def generate(args, sample, sampling_params): ...\n")
    with pytest.raises(PluginError, match="theirs.py:generate' has the wrong shape: it takes no argument 'version'"):
        plugins.resolve("generate", str(slow))


def test_an_argument_that_nobody_gives_is_a_wrong_shape(tmp_path: Path) -> None:
    file = write(tmp_path, "def rollout(env, chat, extra, *, task, seed, group, max_steps, wish): ...\n")
    with pytest.raises(PluginError, match="it needs 'extra', which it is not given; it needs 'wish'"):
        plugins.resolve("rollout", file)


def test_a_folder_is_answered_with_the_files_in_it(tmp_path: Path) -> None:
    write(tmp_path, "")
    with pytest.raises(PluginError, match=r"is a folder: name the file in it; Python files there: mine\.py"):
        plugins.resolve("loss", str(tmp_path))


def test_a_relative_file_is_kept_in_full_from_where_it_was_typed(tmp_path: Path, monkeypatch: Any) -> None:
    write(tmp_path, "def score(prompt, reply, next_state): return 1.0\n")
    monkeypatch.chdir(tmp_path)
    flags = {"--custom-rm-path": "./mine.py", "--custom-loss-function-path": "sub/../mine.py:loss"}
    config = load(environ={}, flags=flags, sets=["env.type=terminal", "policy.generate=package.module:name"]).config
    monkeypatch.chdir("/")
    assert config.judge.custom == f"{tmp_path}/mine.py"
    assert plugins.resolve("judge", config.judge.custom).__name__ == "score"
    assert config.train.loss.custom == f"{tmp_path}/sub/../mine.py:loss"
    assert (config.env.type, config.policy.generate) == ("terminal", "package.module:name")


def test_a_plugin_beside_its_settings_file_that_would_mean_another_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    write(tmp_path, "def score(prompt, reply, next_state): return 1.0\n")
    (tmp_path / "settings.toml").write_text('judge.custom = "mine.py:score"\n')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ConfigError, match=r"judge.custom = \"mine.py\" .* means two things"):
        load(file=tmp_path / "settings.toml", environ={})


def test_a_file_that_fails_or_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"mine.py could not be loaded: ZeroDivisionError"):
        plugins.resolve("loss", write(tmp_path, "1 / 0") + ":loss")
    with pytest.raises(PluginError, match="there is no file"):
        plugins.resolve("loss", str(tmp_path / "gone.py:loss"))
    with pytest.raises(PluginError, match="no module named 'nowhere'"):
        plugins.resolve("loss", "nowhere.at.all:loss")


JUDGE = """
import json
from dataclasses import dataclass
import helpers
from words import praise

@dataclass(frozen=True)
class Found:
    by: str

def score(prompt, reply, next_state, session):
    from late import mark
    return (Found(helpers.NAME), praise.WORD, mark(), json.dumps(1))
"""


def beside(folder: Path, name: str) -> str:
    """A plugin with a module, a package, and a module that is imported when it is called, beside it."""
    (folder / "words").mkdir(parents=True)
    (folder / "mine.py").write_text(JUDGE)
    (folder / "helpers.py").write_text(f"import late\nNAME = {name!r} + late.mark()\n")
    (folder / "late.py").write_text(f"def mark(): return {name[0]!r}\n")
    (folder / "words" / "__init__.py").write_text("from . import praise\n")
    (folder / "words" / "praise.py").write_text(f"WORD = 'well done, {name}'\n")
    return str(folder / "mine.py")


def test_files_beside_a_plugin_are_its_own_and_nobody_elses(tmp_path: Path) -> None:
    before, paths = set(sys.modules), list(sys.path)
    found = [plugins.resolve("judge", beside(tmp_path / name, name))("hi", "hello", [], {}) for name in ("ann", "ben")]
    assert [(each[0].by, *each[1:]) for each in found] == [
        ("anna", "well done, ann", "a", "1"),
        ("benb", "well done, ben", "b", "1"),
    ]
    assert sys.path == paths
    assert all(name.startswith("openclaw_rl_plugin_") for name in set(sys.modules) - before)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("helpers")


def test_what_fails_beside_a_plugin_is_named_and_python_itself_is_not_overridden(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "json.py").write_text("1 / 0")
    with pytest.raises(PluginError, match="could not be loaded: ZeroDivisionError"):
        plugins.resolve("judge", write(tmp_path, "import broken\ndef score(prompt, reply): ..."))
    (tmp_path / "mine.py").write_text("import json\nimport nowhere\n")
    with pytest.raises(PluginError, match="No module named 'nowhere'"):
        plugins.resolve("judge", str(tmp_path / "mine.py"))


def test_an_installed_entry_point_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = tmp_path / "shared_judges-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: shared-judges\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[openclaw_rl.policy]\nshared = openclaw_rl.backends.fake:FakePolicy\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.resolve("policy", "shared") is FakePolicy
    [row] = [row for row in plugins.listed() if row.name == "shared"]
    assert row.origin == "package shared-judges"


@pytest.mark.slow
def test_every_built_in_resolves_and_has_its_shape() -> None:
    pytest.importorskip("torch")
    named = [(kind, name) for kind in plugins.KINDS for name in plugins.BUILT_IN[kind]]
    assert len(named) >= 8
    for kind, name in named:
        assert callable(plugins.resolve(kind, name)), (kind, name)
