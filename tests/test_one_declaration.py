"""One declaration per setting: its default stands in `config` alone, never again where it is used."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 (what app calls loads it anyway; so this file goes where others need it too)

from openclaw_rl import plugins
from openclaw_rl.app import factories, judges
from openclaw_rl.config import SETTINGS, Config
from openclaw_rl.config.names import SECTIONS

ROOT = Path(__file__).parents[1] / "src" / "openclaw_rl"
APP = sorted((ROOT / "app").glob("*.py"))
LEAVES = {path.rpartition(".")[2] for path in SETTINGS}

NOT_BUILT_HERE = tuple(f"openclaw_rl.{room}" for room in ("app", "config", "types", "errors", "clients"))
"""what app calls that is not built from settings: itself, and nouns, whose defaults are neutral values"""

Read = ast.Name | ast.Attribute | ast.Tuple


def imported(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """Each name that a file imports from the package, with its module and its name there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("openclaw_rl")
        for alias in node.names
    }


def loaded(module: str, name: str) -> Any:
    """What a name stands for; its module is imported only now: some take seconds, and most names fill nothing."""
    thing = getattr(importlib.import_module(module), name, None)
    return importlib.import_module(f"{module}.{name}") if thing is None else thing


def reads_settings(node: ast.AST, aliases: set[str]) -> bool:
    """Whether an expression holds ``config``, ``self.config`` or a name that stands for a part of it."""
    return any(
        (isinstance(each, ast.Name) and each.id in aliases)
        or (isinstance(each, ast.Attribute) and ast.unparse(each) == "self.config")
        for each in ast.walk(node)
    )


def aliases_in(function: ast.AST) -> set[str]:
    """The names that stand for settings in a function: ``train, policy = config.train, config.policy``."""
    found = {"config"}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, Read):
            continue
        [target] = node.targets
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        else:
            pairs = [(target, node.value)]
        found |= {to.id for to, value in pairs if isinstance(to, ast.Name) and reads_settings(value, found)}
    return found


def called(call: ast.Call, names: Mapping[str, tuple[str, str]]) -> Any:
    """The class or function of this package that a call leads to; None for any other."""
    head, *attributes = ast.unparse(call.func).split(".")
    thing = loaded(*names[head]) if head in names else None
    for attribute in attributes:
        thing = getattr(thing, attribute, None)
    home = getattr(thing, "__module__", None) or ""
    ours = callable(thing) and home.startswith("openclaw_rl") and not home.startswith(NOT_BUILT_HERE)
    return thing if ours else None


def defaults(thing: Any) -> dict[str, Any]:
    parameters = inspect.signature(thing).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}


def restated(file: Path) -> Iterator[str]:
    """Every parameter that this file fills from a setting and that has a default all the same."""
    tree = ast.parse(file.read_text())
    names = imported(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        aliases = aliases_in(function)
        for call in ast.walk(function):
            if not isinstance(call, ast.Call):
                continue
            given = [each for each in call.keywords if reads_settings(each.value, aliases)]
            if not given or (thing := called(call, names)) is None:
                continue
            has = defaults(thing)
            filled = set().union(*({each.arg} if each.arg else LEAVES for each in given))
            yield from (f"{file.name}: {thing.__qualname__}({each} = {has[each]!r})" for each in filled & has.keys())


@pytest.mark.parametrize("file", APP, ids=lambda file: file.name)
def test_what_app_builds_from_a_setting_has_no_default_for_it(file: Path) -> None:
    assert sorted(set(restated(file))) == []


@pytest.mark.slow
def test_what_a_backend_or_a_judge_is_offered_of_the_settings_has_no_default_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[str] = []

    def look(kind: plugins.Kind, name: str, *, offered: Mapping[str, Any], options: Mapping[str, Any] | None) -> Any:
        thing = plugins.resolve(kind, name)
        settings = {each for each in offered if each in LEAVES or each.startswith("lora") or each.endswith("_alarm")}
        found.extend(f"{kind} {name}: {each}" for each in settings & defaults(thing).keys())

    monkeypatch.setattr(plugins, "build", look)
    config = Config()
    factories.build_policy(config)
    factories.build_trainer(config)
    for name in plugins.BUILT_IN["judge"]:
        judges._named(config, name, None)
    assert found == []


ELSEWHERE = {"config", "cli", "types", "testing", "experiments", "evals", "clients", "ports"}
"""rooms that are given no settings, or above where they are handed out"""
COMMON = {"max_tokens", "top_p", "dry_multiplier", "base_url", "api_key", "model_name"}
"""names that requests and clients have too, with a meaning of their own"""


def declared(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names with a default value in a file: parameters of functions, fields of classes. None is no value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            placed = [*node.args.posonlyargs, *node.args.args][::-1]
            pairs = [*zip(placed, node.args.defaults[::-1], strict=False)]
            pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
            yield from ((each.arg, node.lineno) for each, value in pairs if ast.unparse(value) != "None")
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value is not None:
                    yield each.target.id, each.lineno


def test_no_room_repeats_a_setting_by_its_name() -> None:
    telling = {leaf for leaf in LEAVES if "_" in leaf} - COMMON
    written = re.compile(rf"\b(?:{'|'.join(telling)})\b")  # a file without any of them need not be parsed
    texts = {file: file.read_text() for file in sorted(ROOT.rglob("*.py")) if file.name != "fake.py"}
    found = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file, text in texts.items()
        if file.relative_to(ROOT).parts[0] not in ELSEWHERE and written.search(text)
        for name, line in declared(ast.parse(text))
        if name in telling
    ]
    assert found == []


def test_no_setting_has_the_name_of_a_section() -> None:
    assert not SETTINGS.keys() & SECTIONS.keys()
