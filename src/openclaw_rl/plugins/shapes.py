"""Checks that this program can call a plugin, and identifies the known contract that it follows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, Literal, get_args

from openclaw_rl import ports

# The plugin kinds, the port for each, and the names that a plugin file is searched for.

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

PUBLISHED: Mapping[Kind, tuple[str, ...]] = {
    "policy": ("Policy",),
    "trainer": ("Trainer",),
    "judge": ("score", "get_reward_model", "Judge"),
    "env": ("Env", "make_env"),
    "rollout": ("rollout", "generate_rollout"),
    "generate": ("generate", "custom_generate"),
    "loss": ("loss", "compute_loss"),
}
"""accepted plugin names in a bare file: this project's names and those that other projects publish"""

LossContract = Literal["inputs", "inputs and config", "published"]
JudgeContract = Literal["judge", "score", "reward model"]
_LOSS = "(inputs), (inputs, config) or (policy_logits, reference_logits, rewards, advantages, config)"
_JUDGE = "(prompt, reply, next_state), as a scoring function does, nor (config), as get_reward_model does"


def faults(kind: Kind, thing: Any) -> list[str]:
    """Return the parts of its port that a function or a built object lacks."""
    if kind == "loss":
        return _loss_faults(thing)
    return _port_faults(thing, _members(PORTS[kind]))


def early_faults(kind: Kind, thing: Any) -> list[str]:
    """Return the faults visible before the plugin is built: a class's methods, a function's arguments."""
    if kind not in BUILT:
        return faults(kind, thing)
    if not callable(thing):
        return [f"it is {type(thing).__name__}, not a class or a function that builds one"]
    if inspect.isclass(thing):
        methods = {name: expected for name, expected in _members(PORTS[kind]).items() if expected is not None}
        return _port_faults(thing, methods)
    return [] if kind != "judge" or judge_contract(thing) is not None else [f"it takes neither {_JUDGE}"]


def loss_contract(loss: Any) -> LossContract | None:
    """Return the calling contract of a loss, None if no known contract fits."""
    if not callable(loss):
        return None
    if takes(loss, 1):
        return "inputs"
    if list(_parameters(loss) or ())[1:2] == ["config"] and takes(loss, 2):
        return "inputs and config"
    return "published" if takes(loss, 5) else None


def judge_contract(thing: Any) -> JudgeContract | None:
    """Return a custom judge's contract: a judge, a scoring function, or a reward model factory; None: unknown."""
    if hasattr(thing, "judge") or inspect.isclass(thing):
        return "judge"
    if not callable(thing):
        return None
    return "score" if takes(thing, 3) else "reward model" if takes(thing, 1) else None


def reward_model_faults(model: Any) -> list[str]:
    """Return the parts of the port that the result of ``get_reward_model`` lacks."""
    return _port_faults(model, _members(ports.RewardModel))


def takes(function: Callable[..., object], count: int) -> bool:
    """Return True if the function can be called with ``count`` positional arguments alone."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some built-in callables have no signature
        return True
    return True


def _parameters(function: Callable[..., object]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        return None


def _loss_faults(loss: Any) -> list[str]:
    if not callable(loss):
        return ["it is not callable"]
    if loss_contract(loss) is not None:
        return []
    return [f"it takes ({', '.join(_parameters(loss) or ())}), not {_LOSS}"]


def _port_faults(thing: Any, members: Mapping[str, Callable[..., Any] | None]) -> list[str]:
    problems = []
    for member, expected in members.items():
        called = member == "__call__"
        label = "it" if called else f"{member}()"
        if not (callable(thing) if called else hasattr(thing, member)):
            problems.append("it is not callable" if called else f"it has no {member!r}")
        elif expected is not None:
            actual = thing if called else _bound(thing, member)
            problems += [f"{label} {fault}" for fault in _signature_faults(actual, expected)]
    return problems


def _bound(thing: Any, member: str) -> Any:
    """Return a method as its caller uses it, also if ``thing`` is a class without an instance yet."""
    if inspect.isclass(thing) and inspect.isfunction(method := inspect.getattr_static(thing, member)):
        return MethodType(method, thing)
    return getattr(thing, member)


def _members(port: type) -> dict[str, Callable[..., Any] | None]:
    """Return the members of a port: plain attributes map to None, methods to themselves."""
    members: dict[str, Callable[..., Any] | None] = dict.fromkeys(port.__annotations__)
    for name, value in vars(port).items():
        if inspect.isfunction(value) and (name == "__call__" or not name.startswith("_")):
            members[name] = value
        elif isinstance(value, property):
            members[name] = None
    return members


def _signature_faults(found: Any, expected: Callable[..., Any]) -> list[str]:
    if not callable(found):
        return ["is not callable"]
    has = _parameters(found)
    if has is None:
        return []
    wants = [p for p in inspect.signature(expected).parameters.values() if p.name != "self"]
    return [*_missing(has, wants), *_unwanted(has, wants)]


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _missing(has: Mapping[str, inspect.Parameter], wants: list[inspect.Parameter]) -> list[str]:
    """Return faults for arguments that the caller passes and the function does not accept."""
    kinds = {p.kind for p in has.values()}
    named = [p.name for p in wants if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in has]
    problems = [] if inspect.Parameter.VAR_KEYWORD in kinds else [f"takes no argument {name!r}" for name in named]
    count, needs = sum(p.kind in _POSITIONAL for p in has.values()), sum(p.kind in _POSITIONAL for p in wants)
    if count < needs and inspect.Parameter.VAR_POSITIONAL not in kinds:
        problems.append(f"takes {count} positional arguments, not {needs}")
    return problems


def _unwanted(has: Mapping[str, inspect.Parameter], wants: list[inspect.Parameter]) -> list[str]:
    """Return faults for required arguments that the caller does not pass."""
    passed = {p.name for p in wants if p.kind is inspect.Parameter.KEYWORD_ONLY}
    room = sum(p.kind in _POSITIONAL for p in wants)
    placed = [p for p in has.values() if p.kind in _POSITIONAL and p.name not in passed][room:]
    named = [p for p in has.values() if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in passed]
    return [f"needs {p.name!r}, which it is not given" for p in (*placed, *named) if p.default is p.empty]
