"""The Berkeley function-calling tasks, from the data of the package `bfcl-eval`; none of it is copied here.

Single-turn tasks are checked against their authors' accepted calls, value by value. Multi-turn tasks act on the
package's own backends: after each request their state must equal the state after the author's calls, and all results of
the author's calls must have appeared. Calls use parsed arguments; text from a model is never evaluated.
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from openclaw_rl.envs.actions import ActionForm
from openclaw_rl.envs.curricula import Split, package_folder, split_of
from openclaw_rl.envs.toolcall.env import ToolCallEnv
from openclaw_rl.envs.toolcall.sources import ToolEpisode
from openclaw_rl.envs.toolcall.tools_config import WantedCall
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.types import Tool

SINGLE = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple")
MULTI = ("multi_turn_base", "multi_turn_long_context")
STEPS = 1
TURN_STEPS = 8
"""replies per request of a multi-turn task"""
BACKENDS: Mapping[str, str] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""the package's backend classes, and the modules that define them"""
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def bfcl(
    *,
    form: ActionForm,
    examples: int | None,
    levels: Sequence[str],
    output_chars: int,
    step_votes: bool,
    folder: Path | None,
) -> ToolCallEnv:
    """Create the environment. ``folder`` is the package's location if Python does not find it."""
    place = package_folder("bfcl_eval", "bfcl-eval", folder)
    source = BfclSource(place, levels=tuple(levels))
    return ToolCallEnv(
        name="bfcl", source=source, form=form, examples=examples, output_chars=output_chars, step_votes=step_votes
    )


class BfclSource:
    """See `TaskSource`. Levels are the package's categories; prompts show no solved tasks."""

    def __init__(self, package: Path, *, levels: Sequence[str]) -> None:
        for level in levels:
            if level not in (*SINGLE, *MULTI):
                raise ConfigError(f"no level {level!r} in bfcl", remedy=f"known: {', '.join((*SINGLE, *MULTI))}")
        self._package = package
        self._rows = {
            f"{level}/{row['id'].rpartition('_')[2] if level in MULTI else row['id'].removeprefix(level + '_')}": row
            for level in (levels or (*SINGLE, *MULTI))
            for row in _rows(package / "data", level)
        }

    def ids(self, split: Split) -> Sequence[str]:
        return tuple(task for task in self._rows if split_of(self.instruction(task)) == split)

    def level(self, task: str) -> str:
        return task.partition("/")[0]

    def _row(self, task: str) -> Mapping[str, Any]:
        if task not in self._rows:
            raise ConfigError(f"no task {task!r} in bfcl", remedy="'openclaw-rl envs list --tasks' shows them")
        return self._rows[task]

    def instruction(self, task: str) -> str:
        return "\n".join(message["content"] for turn in self._row(task)["question"] for message in turn)

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        row = self._row(task)
        if self.level(task) in SINGLE:
            return [WantedCall(tool=_plain_name(name), arguments=_chosen(values)) for name, values in _wanted(row)]
        signatures = {tool.name: tool for tool in self._tools(row)}
        solution: list[WantedCall | str] = []
        for turn in row["ground_truth"]:
            solution += [*(_parsed(call, signatures) for call in turn), "done"]
        return solution

    def begin(self, task: str, *, examples: int) -> ToolEpisode:
        row = self._row(task)
        if self.level(task) in SINGLE:
            wanted = _wanted(row)
            tools = [_tool(function) for function in row["function"]]
            return self._episode(self.instruction(task), tools, AcceptedCalls(wanted=wanted), len(wanted))
        world = BackendWorld.of(row, self._package, long="long_context" in task)
        steps = TURN_STEPS * len(row["question"])
        return self._episode(row["question"][0][0]["content"], self._tools(row), world, steps)

    def _episode(self, asked: str, tools: Sequence[Tool], world: Any, steps: int) -> ToolEpisode:
        return ToolEpisode(instruction=asked, tools=tuple(tools), world=world, steps=steps, answered=False, examples=())

    def _tools(self, row: Mapping[str, Any]) -> list[Tool]:
        tools = [
            _tool(document)
            for name in row["involved_classes"]
            for document in _lines(self._package / "data" / "multi_turn_func_doc" / f"{BACKENDS[name]}.json")
        ]
        return [tool for tool in tools if tool.name not in row.get("excluded_function", ())]


@lru_cache(maxsize=32)
def _rows(data: Path, level: str) -> list[dict[str, Any]]:
    answers = {row["id"]: row["ground_truth"] for row in _lines(data / "possible_answer" / f"BFCL_v4_{level}.json")}
    return [
        {**row, "ground_truth": answers[row["id"]]}
        for row in _lines(data / f"BFCL_v4_{level}.json")
        if row["id"] in answers
    ]


@lru_cache(maxsize=64)
def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _tool(given: Mapping[str, Any]) -> Tool:
    return Tool(
        name=_plain_name(given["name"]), description=given["description"], parameters=_schema(given["parameters"])
    )


def _plain_name(name: str) -> str:
    """Replace the dots, which tool names may not contain."""
    return name.replace(".", "_")


def _schema(given: Any) -> Any:
    """Convert a schema with the package's own types to JSON schema."""
    if isinstance(given, list):
        return [_schema(item) for item in given]
    if not isinstance(given, dict):
        return given
    schema = {key: _schema(value) for key, value in given.items() if key not in ("optional",)}
    kind = schema.get("type")
    if kind == "any":
        del schema["type"]
    elif isinstance(kind, str):
        schema["type"] = _TYPES.get(kind, kind)
    return schema


# --- accepted calls ---

Accepted = tuple[str, Mapping[str, Sequence[Any]]]
"""a function with the accepted values per argument; an empty text among them makes the argument optional"""


def _wanted(row: Mapping[str, Any]) -> list[Accepted]:
    return [(name, values) for entry in row["ground_truth"] for name, values in entry.items()]


def _chosen(values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return accepted arguments: the first value of each required one."""
    return {name: _inside(accepted[0]) for name, accepted in values.items() if accepted and accepted[0] != ""}


def _inside(value: Any) -> Any:
    """Choose the first accepted value at every depth, since tables contain lists of accepted values too."""
    if isinstance(value, dict):
        first = {key: item[0] if isinstance(item, list) and item else item for key, item in value.items()}
        return {key: _inside(item) for key, item in first.items() if item != ""}
    return [_inside(item) for item in value] if isinstance(value, list) else value


@dataclass(slots=True, kw_only=True)
class AcceptedCalls:
    """Solved when the calls made equal the required ones, in any order."""

    wanted: Sequence[Accepted]
    _made: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self._made.append((name, arguments))
        return "done"

    async def score(self, answer: str | None) -> float:
        remaining = list(self.wanted)
        for call in self._made:
            fit = next((accepted for accepted in remaining if accepts(accepted, *call)), None)
            if fit is None:
                return 0.0
            remaining.remove(fit)
        return float(not remaining)

    async def close(self) -> None:
        """Do nothing."""


def accepts(wanted: Accepted, name: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if a call is accepted.

    >>> accepts(("area", {"base": [10], "unit": ["cm", ""]}), "area", {"base": 10.0})
    True
    >>> accepts(("area", {"base": [10], "unit": ["cm", ""]}), "area", {"base": 10, "unit": "m"})
    False
    """
    function, values = wanted
    if _plain_name(function) != name or arguments.keys() - values.keys():
        return False
    return all(
        _fits(arguments[key], accepted) if key in arguments else "" in accepted for key, accepted in values.items()
    )


def _fits(value: Any, accepted: Sequence[Any]) -> bool:
    return any(_same(value, candidate) for candidate in accepted)


def _same(value: Any, wanted: Any) -> bool:
    """Return True if equal: texts ignoring case, spaces and punctuation, numbers by value, lists in order, tables by
    key.
    """
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, str) and isinstance(wanted, str):
        return _letters(value) == _letters(wanted)
    if isinstance(value, dict) and isinstance(wanted, dict):
        return not value.keys() - wanted.keys() and all(
            _fits(value[key], _alternatives(accepted)) if key in value else "" in _alternatives(accepted)
            for key, accepted in wanted.items()
        )
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(_same(*pair) for pair in zip(value, wanted, strict=True))
    return bool(value == wanted)


def _alternatives(found: Any) -> Sequence[Any]:
    """Return the accepted values inside a table: a list's values and the list itself, or a single value."""
    return [*found, found] if isinstance(found, list) else [found]


def _letters(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).casefold().replace("'", '"')


# --- backends ---


def _parsed(call: str, tools: Mapping[str, Tool]) -> WantedCall:
    """Parse a call in the data, which is Python source."""
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    names = list(tools[node.func.id].parameters.get("properties", {})) if node.func.id in tools else []
    values = [*zip(names, node.args, strict=False), *((keyword.arg, keyword.value) for keyword in node.keywords)]
    return WantedCall(tool=node.func.id, arguments={str(name): ast.literal_eval(value) for name, value in values})


@dataclass(slots=True, kw_only=True)
class BackendWorld:
    """A user's successive requests to one set of the package's objects; a second set takes the author's calls."""

    requests: list[str]
    gold: list[list[WantedCall]]
    mine: Mapping[str, Any]
    theirs: Mapping[str, Any]
    _seen: list[str] = field(default_factory=list)
    _acted: bool = False
    _right: int = 0
    _wrong: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any], package: Path, *, long: bool) -> BackendWorld:
        """Create both sets of objects in the task's initial state; raise EnvFailed if a dependency is missing."""
        documented = {tool["name"]: _tool(tool) for name in row["involved_classes"] for tool in _docs(package, name)}
        return cls(
            requests=[turn[0]["content"] for turn in row["question"][1:]],
            gold=[[_parsed(call, documented) for call in turn] for turn in row["ground_truth"]],
            mine=_objects(row, package, long=long),
            theirs=_objects(row, package, long=long),
        )

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        result = _called(self.mine, name, arguments)
        self._seen.append(result)
        self._acted = True
        return result

    async def next_request(self) -> str | None:
        self._settle()
        return None if self._wrong or not self.requests else self.requests.pop(0)

    def _settle(self) -> None:
        """Finish a request: execute the author's calls and compare."""
        if self._wrong or not self.gold:
            return
        wanted = self.gold.pop(0)
        results = [_called(self.theirs, call.tool, call.arguments) for call in wanted]
        acted, self._acted = self._acted, False
        missing = list(self._seen)
        for result in results:
            if result not in missing:
                self._wrong = True
                return
            missing.remove(result)
        self._wrong = (bool(wanted) and not acted) or any(
            _state(self.mine[name]) != _state(self.theirs[name]) for name in self.theirs
        )

    async def score(self, answer: str | None) -> float:
        """Return 1 if every request was met; 0 while one is open."""
        return float(not self._wrong and not self.gold)

    async def close(self) -> None:
        """Do nothing."""


def _docs(package: Path, name: str) -> list[dict[str, Any]]:
    return _lines(package / "data" / "multi_turn_func_doc" / f"{BACKENDS[name]}.json")


def _objects(row: Mapping[str, Any], package: Path, *, long: bool) -> dict[str, Any]:
    backends: dict[str, Any] = {}
    for name in row["involved_classes"]:
        backends[name] = _backend(package, name)()
        if hasattr(backends[name], "_load_scenario"):
            backends[name]._load_scenario(copy.deepcopy(row["initial_config"].get(name, {})), long_context=long)
    return backends


def _backend(package: Path, name: str) -> Any:
    if str(package.parent) not in sys.path:
        sys.path.append(str(package.parent))
    module = f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.{BACKENDS[name]}"
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise EnvFailed(f"{name} of bfcl-eval cannot be loaded: {error}", remedy="pip install mpmath") from error


def _called(objects: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call's result as text; an exception's message is a result too."""
    method = next(
        (function for backend in objects.values() if callable(function := getattr(backend, name, None))), None
    )
    if method is None or name.startswith("_"):
        return f"Error during execution: there is no function {name}"
    try:
        result = method(**arguments)
    except Exception as error:  # third-party code reports errors to the agent by exceptions
        return f"Error during execution: {error}"
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result)
    except TypeError:
        return str(result)


def _state(one: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(one).items() if not name.startswith("_")}
