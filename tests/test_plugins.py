"""One door for built-ins and for a user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw_rl import plugins
from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.errors import PluginError


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
        match=r"no policy called 'fkae' \(did you mean 'fake'\?\); known: fake, local, or give 'module:attribute'",
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
        ("loss", "loss", "takes 0 positional arguments, not 1"),
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


def test_a_file_that_fails_or_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"mine.py could not be loaded: ZeroDivisionError"):
        plugins.resolve("loss", write(tmp_path, "1 / 0") + ":loss")
    with pytest.raises(PluginError, match="there is no file"):
        plugins.resolve("loss", str(tmp_path / "gone.py:loss"))
    with pytest.raises(PluginError, match="no module named 'nowhere'"):
        plugins.resolve("loss", "nowhere.at.all:loss")


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
