"""Plugins: a built-in name, an entry point, ``module:attribute``, ``file.py:attribute`` and a bare file resolve alike.

    policy, trainer, judge, env     a class, or a function that returns an instance, called by keyword
    rollout, generate, loss         a function, used directly

    kinds    the kinds, the port for each, and the names that a bare file is searched for
    shapes   checks whether a plugin can be called, and which known contract it follows
    files    loads the object at an address

A plugin receives those offered keyword arguments that its signature names.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from openclaw_rl import ports
from openclaw_rl.errors import OpenClawError, PluginError
from openclaw_rl.plugins.files import find, load
from openclaw_rl.plugins.shapes import (
    BUILT,
    KINDS,
    PORTS,
    PUBLISHED,
    JudgeContract,
    Kind,
    LossContract,
    early_faults,
    faults,
    judge_contract,
    loss_contract,
    reward_model_faults,
)

BUILT_IN: Mapping[Kind, Mapping[str, str]] = {
    "policy": {
        "local": "openclaw_rl.backends.local.engine.policy:local_policy",
        "vllm": "openclaw_rl.backends.engines.policy:vllm_policy",
        "sglang": "openclaw_rl.backends.engines.policy:sglang_policy",
        "tinker": "openclaw_rl.backends.tinker.factories:tinker_policy",
        "fake": "openclaw_rl.backends.fake:FakePolicy",
    },
    "trainer": {
        "local": "openclaw_rl.backends.local.training.trainer:local_trainer",
        "tinker": "openclaw_rl.backends.tinker.factories:tinker_trainer",
        "fake": "openclaw_rl.backends.fake:FakeTrainer",
    },
    "judge": {
        "auto": "openclaw_rl.judge.parts:AutoJudge",
        "feedback-classifier": "openclaw_rl.judge.feedback_classifier.judge:FeedbackClassifierJudge",
        "rules": "openclaw_rl.judge.custom:RulesJudge",
        "behaviour": "openclaw_rl.judge.behaviour:BehaviourJudge",
        "llm": "openclaw_rl.judge.llm:LlmJudge",
    },
    "env": {
        "terminal": "openclaw_rl.envs.terminal.env:curriculum",
        "toolcall": "openclaw_rl.envs.toolcall.env:toolcall",
        "gui": "openclaw_rl.envs.gui.env:gui",
        "swe": "openclaw_rl.envs.swe.env:swe",
        "gymnasium": "openclaw_rl.envs.gym.env:GymnasiumEnv",
        "bfcl": "openclaw_rl.envs.toolcall.bfcl:bfcl",
        "reasoning-gym": "openclaw_rl.envs.toolcall.reasoning:reasoning_gym",
        "agentbench-os": "openclaw_rl.envs.terminal.published:agentbench_os",
        "intercode-bash": "openclaw_rl.envs.terminal.published:intercode_bash",
        "harbor": "openclaw_rl.envs.terminal.harbor:harbor",
    },
    "rollout": {
        "episode": "openclaw_rl.envs.episodes:run_episode",
        "play": "openclaw_rl.envs.episodes:run_episode",  # its former name
    },
    "generate": {},
    "loss": {},
}

__all__ = [
    "BUILT",
    "BUILT_IN",
    "KINDS",
    "PORTS",
    "PUBLISHED",
    "JudgeContract",
    "Kind",
    "Listed",
    "LossContract",
    "address",
    "build",
    "check",
    "judge_contract",
    "listed",
    "load",
    "loss_contract",
    "refuse_wrong_shape",
    "resolve",
    "reward_model",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One line in `openclaw-rl plugins`."""

    kind: Kind
    name: str
    target: str
    origin: str


def listed() -> list[Listed]:
    """Return every named plugin, kind by kind."""
    entries = []
    for kind in KINDS:
        entries += [Listed(kind=kind, name=n, target=t, origin="built-in") for n, t in BUILT_IN[kind].items()]
        entries += [
            Listed(kind=kind, name=point.name, target=point.value, origin=f"package {_owner(point)}")
            for point in _entry_points(kind)
        ]
    return entries


def address(kind: Kind, name: str) -> str:
    """Return the ``module:attribute`` or ``file.py:attribute`` for a name; raises PluginError with the known names."""
    target = BUILT_IN[kind].get(name)
    if target is None and name.endswith(".py"):
        target = find(kind, name)
    if target is None and ":" in name:
        target = name
    if target is None:
        target = next((point.value for point in _entry_points(kind) if point.name == name), None)
    if target is None:
        raise PluginError(_unknown(kind, name))
    return target


def resolve(kind: Kind, name: str) -> Any:
    """Return the class or function for a name; raises PluginError with the known names or the object's fault."""
    target = address(kind, name)
    thing = load(kind, target)
    if kind not in BUILT:
        refuse_wrong_shape(kind, target, thing)
    elif not callable(thing):
        raise PluginError(f"{kind} {target!r} is {type(thing).__name__}, not a class or a function that builds one")
    return thing


def build(kind: Kind, name: str, *, offered: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Build the plugin with the offered arguments in its signature and all ``options``; refuse a wrong shape."""
    factory = resolve(kind, name)
    accepted = inspect.signature(factory).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    for option in options:
        if option not in accepted and not takes_all:
            near = difflib.get_close_matches(option, accepted, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise PluginError(f"{kind} {name!r} takes no option {option!r}{hint}; it takes {', '.join(accepted)}")
    arguments = {key: value for key, value in offered.items() if takes_all or key in accepted} | {**options}
    try:
        thing = factory(**arguments)
    except TypeError as error:
        raise PluginError(f"{kind} {name!r} could not be built: {error}") from error
    refuse_wrong_shape(kind, name, thing)
    return thing


def reward_model(name: str, factory: Any, config: Mapping[str, Any]) -> ports.RewardModel:
    """Return the model from a published ``get_reward_model(config)``; raises PluginError if that fails."""
    try:
        model: ports.RewardModel = factory(dict(config))
    except OpenClawError:
        raise
    except Exception as error:  # third-party code: the error reports how it failed
        remedy = "set PRM_MODEL_PATH" if config.get("prm_model_path") is None else None
        raise PluginError(
            f"judge {name!r} gives no reward model: {type(error).__name__}: {error}", remedy=remedy
        ) from error
    if problems := reward_model_faults(model):
        why = f"judge {name!r} gives a reward model of the wrong shape: {'; '.join(problems)}"
        raise PluginError(why, remedy="see openclaw_rl.ports.RewardModel")
    return model


def check(kind: Kind, name: str) -> None:
    """Raise PluginError for the faults that a plugin shows before it is built."""
    _refuse(kind, name, early_faults(kind, resolve(kind, name)))


def refuse_wrong_shape(kind: Kind, name: str, thing: Any) -> None:
    """Raise PluginError with every part of the port that this object or function lacks."""
    _refuse(kind, name, faults(kind, thing))


def _refuse(kind: Kind, name: str, found: Sequence[str]) -> None:
    if found:
        raise PluginError(
            f"{kind} {name!r} has the wrong shape: {'; '.join(found)}",
            remedy=f"see openclaw_rl.ports.{PORTS[kind].__name__}",
        )


def _entry_points(kind: Kind) -> metadata.EntryPoints:
    return metadata.entry_points(group=f"openclaw_rl.{kind}")


def _owner(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"


def _unknown(kind: Kind, name: str) -> str:
    if Path(name).expanduser().is_dir():
        inside = ", ".join(sorted(file.name for file in Path(name).expanduser().glob("*.py"))) or "none"
        return f"{kind} {name!r} is a folder: name the file in it; Python files there: {inside}"
    names = sorted({*BUILT_IN[kind], *(point.name for point in _entry_points(kind))})
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    ways = ", ".join([*names, "or give 'module:attribute', 'file.py:attribute' or 'file.py'"])
    return f"no {kind} called {name!r}{hint}; known: {ways}"
