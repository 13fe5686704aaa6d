"""Plugins: built-in names, installed entry points, ``module:attribute`` and ``file.py:attribute`` resolve alike.

    policy, trainer, judge, env     something to build: a class, or a function that returns one, called by keyword
    rollout, generate, loss         a function, used as it is

A plugin is given those of the offered keyword arguments that it names, so it takes only what it needs.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MethodType
from typing import Any, Literal, get_args

from openclaw_rl import ports
from openclaw_rl.errors import MissingExtra, OpenClawError, PluginError

Kind = Literal["policy", "trainer", "judge", "env", "rollout", "generate", "loss"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BUILT: tuple[Kind, ...] = ("policy", "trainer", "judge", "env")

PORTS: Mapping[Kind, type] = {
    "policy": ports.Policy,
    "trainer": ports.Trainer,
    "judge": ports.Judge,
    "env": ports.Env,
    "rollout": ports.Rollout,
    "generate": ports.Generate,
    "loss": ports.Loss,
}

BUILT_IN: Mapping[Kind, Mapping[str, str]] = {
    "policy": {
        "local": "openclaw_rl.backends.local.engine.policy:local_policy",
        "fake": "openclaw_rl.backends.fake:FakePolicy",
    },
    "trainer": {
        "local": "openclaw_rl.backends.local.training.trainer:local_trainer",
        "fake": "openclaw_rl.backends.fake:FakeTrainer",
    },
    "judge": {
        "auto": "openclaw_rl.judge.auto:AutoJudge",
        "rules": "openclaw_rl.judge.rules:RulesJudge",
        "llm": "openclaw_rl.judge.llm:LlmJudge",
    },
    "env": {},
    "rollout": {
        "episode": "openclaw_rl.envs.episodes:run_episode",
        "play": "openclaw_rl.envs.episodes:run_episode",  # its former name
    },
    "generate": {},
    "loss": {},
}

_EXTRA_OF = {"torch": "local", "transformers": "local", "peft": "local", "safetensors": "local", "gguf": "local"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One line of `openclaw-rl plugins`."""

    kind: Kind
    name: str
    target: str
    origin: str


def listed() -> list[Listed]:
    """Every plugin that has a name, kind by kind."""
    found = []
    for kind in KINDS:
        found += [Listed(kind=kind, name=n, target=t, origin="built-in") for n, t in BUILT_IN[kind].items()]
        found += [
            Listed(kind=kind, name=point.name, target=point.value, origin=f"package {_owner(point)}")
            for point in _entry_points(kind)
        ]
    return found


def resolve(kind: Kind, name: str) -> Any:
    """The class or function behind a name; raises PluginError with what is known, or what is wrong with it."""
    target = BUILT_IN[kind].get(name)
    if target is None and ":" in name:
        target = name
    if target is None:
        target = next((point.value for point in _entry_points(kind) if point.name == name), None)
    if target is None:
        raise PluginError(_unknown(kind, name))
    thing = load(kind, target)
    if kind not in BUILT:
        refuse_wrong_shape(kind, name, thing)
    elif not callable(thing):
        raise PluginError(f"{kind} {name!r} is {type(thing).__name__}, not a class or a function that builds one")
    return thing


def build(kind: Kind, name: str, *, offered: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Build the plugin from the offered arguments it names and all of ``options``; refuse it if its shape is wrong."""
    factory = resolve(kind, name)
    accepted = inspect.signature(factory).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    for option in options:
        if option not in accepted and not takes_all:
            near = difflib.get_close_matches(option, accepted, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise PluginError(f"{kind} {name!r} takes no option {option!r}{hint}; it takes {', '.join(accepted)}")
    given = {key: value for key, value in offered.items() if takes_all or key in accepted} | {**options}
    try:
        thing = factory(**given)
    except TypeError as error:
        raise PluginError(f"{kind} {name!r} could not be built: {error}") from error
    refuse_wrong_shape(kind, name, thing)
    return thing


def check(kind: Kind, name: str) -> None:
    """Raise PluginError for what is wrong with a plugin, as far as it shows before it is built."""
    thing = resolve(kind, name)
    if kind in BUILT and inspect.isclass(thing):
        methods = {member: expected for member, expected in _members(PORTS[kind]).items() if expected is not None}
        _refuse(kind, name, _faults(thing, methods))


def refuse_wrong_shape(kind: Kind, name: str, thing: Any) -> None:
    """Raise PluginError naming every part that the port asks for and this thing, or function, lacks."""
    _refuse(kind, name, _faults(thing, _members(PORTS[kind])))


def _faults(thing: Any, members: Mapping[str, Callable[..., Any] | None]) -> list[str]:
    faults = []
    for member, expected in members.items():
        called = member == "__call__"
        label = "it" if called else f"{member}()"
        if not (callable(thing) if called else hasattr(thing, member)):
            faults.append("it is not callable" if called else f"it has no {member!r}")
        elif expected is not None:
            found = thing if called else _bound(thing, member)
            faults += [f"{label} {fault}" for fault in _signature_faults(found, expected)]
    return faults


def _bound(thing: Any, member: str) -> Any:
    """A method as its caller sees it, also where ``thing`` is a class whose instance is not built yet."""
    if inspect.isclass(thing) and inspect.isfunction(method := inspect.getattr_static(thing, member)):
        return MethodType(method, thing)
    return getattr(thing, member)


def _refuse(kind: Kind, name: str, faults: Sequence[str]) -> None:
    if faults:
        raise PluginError(
            f"{kind} {name!r} has the wrong shape: {'; '.join(faults)}",
            remedy=f"see openclaw_rl.ports.{PORTS[kind].__name__}",
        )


def _members(port: type) -> dict[str, Callable[..., Any] | None]:
    """What a port asks for: plain attributes map to None, methods to themselves."""
    wanted: dict[str, Callable[..., Any] | None] = dict.fromkeys(port.__annotations__)
    for name, value in vars(port).items():
        if inspect.isfunction(value) and (name == "__call__" or not name.startswith("_")):
            wanted[name] = value
        elif isinstance(value, property):
            wanted[name] = None
    return wanted


def _signature_faults(found: Any, expected: Callable[..., Any]) -> list[str]:
    if not callable(found):
        return ["is not callable"]
    try:
        has = inspect.signature(found).parameters
    except (TypeError, ValueError):  # some built-in callables do not tell
        return []
    kinds = {p.kind for p in has.values()}
    wants = [p for p in inspect.signature(expected).parameters.values() if p.name != "self"]
    faults = []
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        named = [p.name for p in wants if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in has]
        faults += [f"takes no argument {name!r}" for name in named]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = sum(p.kind in positional for p in has.values())
    needs = sum(p.kind in positional for p in wants)
    if takes < needs and inspect.Parameter.VAR_POSITIONAL not in kinds:
        faults.append(f"takes {takes} positional arguments, not {needs}")
    return faults


def load(kind: str, target: str) -> Any:
    """What ``module:attribute`` or ``file.py:attribute`` leads to; raises PluginError that says which half is wrong.

    A file is loaded once per process. ``kind`` says in errors what the target is for.
    """
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise PluginError(f"{kind} {target!r} is no address", remedy="write 'module:attribute' or 'file.py:attribute'")
    module = _from_file(kind, place) if place.endswith(".py") else _from_module(kind, place)
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PluginError(f"{place} has no {attribute!r}, named as {kind} {target!r}{hint}")
    return getattr(module, attribute)


def _from_module(kind: str, place: str) -> Any:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _EXTRA_OF:
            raise MissingExtra(missing, _EXTRA_OF[missing]) from error
        raise PluginError(f"{kind}: no module named {error.name!r}, named as {place!r}") from error


def _from_file(kind: str, place: str) -> Any:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise PluginError(f"{kind}: there is no file {path}", remedy="give it as 'path/to/file.py:attribute'")
    name = f"openclaw_rl_plugin_{abs(hash(str(path)))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own file may fail in any way: say where, and keep the trace
        del sys.modules[name]
        if isinstance(error, OpenClawError):
            raise
        raise PluginError(f"{kind}: {path} could not be loaded: {type(error).__name__}: {error}") from error
    return module


def _entry_points(kind: Kind) -> metadata.EntryPoints:
    return metadata.entry_points(group=f"openclaw_rl.{kind}")


def _owner(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"


def _unknown(kind: Kind, name: str) -> str:
    known = sorted({*BUILT_IN[kind], *(point.name for point in _entry_points(kind))})
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    ways = ", ".join([*known, "or give 'module:attribute' or 'file.py:attribute'"])
    return f"no {kind} called {name!r}{hint}; known: {ways}"
