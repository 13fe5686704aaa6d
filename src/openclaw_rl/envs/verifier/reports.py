"""Runs the text of `run_inside` in a sandbox, and reads its report only if it is sealed with our key."""

from __future__ import annotations

import ast
import copy
import hashlib
import hmac
import inspect
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from openclaw_rl.envs.sandbox import Sandbox
from openclaw_rl.envs.verifier import run_inside
from openclaw_rl.envs.verifier.run_inside import EQUAL

LARGEST: Final = 8 << 20
PASSED: Final = "passed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A test run's report. ``whole``: the run is complete. ``exit`` is None if there is no sealed report.

    ``outcomes`` are by pytest's test name, over all ``runs``; ``rewards`` are the texts of a script's score files.
    """

    outcomes: Mapping[str, str]
    whole: bool
    exit: int | None
    seconds: float
    output: str
    stopped: str
    rewards: Mapping[str, str | None] = field(default_factory=dict)
    runs: int = 0


async def run_sealed(
    sandbox: Sandbox,
    python: str,
    settings: Mapping[str, Any],
    words: Sequence[str] = (),
    *,
    seconds: float | None = None,
) -> Report:
    """Run the tests once, from ``/``, since an agent may remove any other folder; the child enters `cwd`."""
    key, place = secrets.token_hex(32), f"/tmp/{secrets.token_hex(8)}"
    options = json.dumps({**settings, "sealed": True, "report": place})
    line = [python, "-I", "-c", source(), options, *words]
    result = await sandbox.run(line, stdin=f"{key}\n".encode(), cwd="/", seconds=seconds)
    report = await _sealed(sandbox, place, key, result.output)
    outcomes, whole = read_runs(report.get("runs", []))
    return Report(
        outcomes=outcomes,
        whole=whole,
        exit=report.get("exit"),
        seconds=result.seconds,
        output=result.output,
        stopped=result.stopped,
        rewards=report.get("rewards", {}),
        runs=len(report.get("runs", [])),
    )


def source() -> str:
    """Return the text that runs inside."""
    return inspect.getsource(run_inside)


async def _sealed(sandbox: Sandbox, place: str, key: str, output: str) -> dict[str, Any]:
    """Return the report if its seal is valid for exactly this text; code under test can write files and print."""
    try:
        data = await sandbox.read(place, most=LARGEST)
    except OSError:
        return {}
    seal = hmac.new(key.encode(), data, hashlib.sha256).hexdigest()
    return dict(json.loads(data)) if seal in output else {}


def read_runs(runs: Any) -> tuple[dict[str, str], bool]:
    """Return the outcomes of all runs, and True if each is complete. Any outcome but "passed" takes precedence.

    >>> read_runs([{"verdicts": [["a", "passed"], ["a", "failed"], [[], "passed"]], "ended": True}])
    ({'a': 'failed'}, True)
    """
    outcomes: dict[str, str] = {}
    listed = [entry for entry in runs if isinstance(entry, dict)] if isinstance(runs, list) else []
    for run in listed:
        for verdict in run.get("verdicts", ()):
            match verdict:
                case [str(test), str(outcome)] if outcomes.get(test, PASSED) == PASSED:
                    outcomes[test] = outcome
    return outcomes, bool(listed) and all(run.get("ended") is True for run in listed)


# Tests that must fail: the control for a result that code under test may have forged.
#
# That code shares a process with pytest, so it can replace anything that reports there. It cannot predict the answer to
# an unknown question: each test is copied twice, once with a failure at its end, once with every `==` also evaluated on
# values that are not equal. A report of "passed" for the first, or an object that equals the second, is forged. If a
# test of an honest author behaves like this, the audit refuses its task, since its gold solution would count as forged
# too.

_EQUAL_SUFFIX: Final = "_and_nothing_else"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PROLOGUE: Final = '''
class {error}(BaseException):
    """An object equals what it is not."""

def _openclaw_rl_equal(left, right):
    import unittest.mock as mock
    def others(value, depth=0):
        kind = type(value)
        if kind is bool:
            yield not value
        elif kind in (int, float):
            whole = value if abs(value) < 1e300 else 0
            yield whole * 2 + {number} if whole >= 0 else whole * 2 - {number}
        elif kind in (str, bytes):
            yield value + ({text!r} if kind is str else {text!r}.encode())
        elif kind in (list, tuple) and value and depth < 3:
            for place, one in enumerate(value[:32]):
                for other in others(one, depth + 1):
                    yield kind((*value[:place], other, *value[place + 1:]))
        elif kind is dict and value and depth < 3:
            for key in list(value)[:32]:
                for other in others(value[key], depth + 1):
                    yield {{**value, key: other}}
        elif kind in (set, frozenset):
            yield value | {{{text!r}}}
        else:
            yield object()
    def wild(value, depth=0):
        if value is mock.ANY:
            return True
        parts = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
        return depth < 4 and any(wild(one, depth + 1) for one in parts)
    def same(left, right):
        try:
            return bool(left == right)
        except Exception:
            return False
    found = left == right
    if not wild(left) and not wild(right) and any(
        same(one, wrong) for one, other in ((left, right), (right, left)) for wrong in others(other)
    ):
        raise {error}("an object equals what it is not")
    return found
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A test file whose tests must fail, with their names, such as ``TestA::test_b``."""

    text: str
    names: frozenset[str]


def control(text: str) -> Control | None:
    """Return the control for a test file, or None if it contains no test or is not valid Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    names = frozenset(test_names(text))
    if not names:
        return None
    _replace_tests(tree)
    prologue = _PROLOGUE.format(error=EQUAL, number=10**6 + secrets.randbelow(10**6), text=secrets.token_hex(4))
    tree.body[_first_place(tree) : _first_place(tree)] = ast.parse(prologue).body
    return Control(text=ast.unparse(ast.fix_missing_locations(tree)), names=names)


def test_names(text: str) -> Iterator[str]:
    """Yield the original names of a file's test functions, prefixed with their classes."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    yield from _names(tree.body, "")


def _names(body: Iterable[ast.stmt], before: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, _FUNCTIONS) and node.name.startswith("test") and not _generates(node):
            yield before + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{before}{node.name}::")


def _replace_tests(scope: ast.Module | ast.ClassDef) -> None:
    """Replace each test by its failing copy, and a copy that evaluates `==` twice."""
    body: list[ast.stmt] = []
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            _replace_tests(node)
        if isinstance(node, _FUNCTIONS) and node.name.startswith("test") and not _generates(node):
            doubted = _DoubtEquality().visit(copy.deepcopy(node))
            doubted.name += _EQUAL_SUFFIX
            failure = ast.parse("raise AssertionError('this copy of a test must fail')").body
            node.body = [ast.Try(body=node.body, handlers=[], orelse=[], finalbody=failure)]
            body += [node, doubted]
        else:
            body.append(node)
    scope.body = body


def _generates(node: ast.AST) -> bool:
    return any(isinstance(child, (ast.Yield, ast.YieldFrom)) for child in ast.walk(node))


def _first_place(tree: ast.Module) -> int:
    """Return the position after the docstring and the `__future__` imports."""
    place = 0
    for number, node in enumerate(tree.body):
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if future or (number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            place = number + 1
    return place


class _DoubtEquality(ast.NodeTransformer):
    """Replaces `assert a == b` and `self.assertEqual(a, b)` by a call that compares more."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            node.test = _asked(test.left, test.comparators[0])
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        named = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "assertEqual"
        if named and isinstance(call, ast.Call) and len(call.args) >= 2:
            return ast.Assert(test=_asked(call.args[0], call.args[1]), msg=None)
        return node


def _asked(left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.Call(func=ast.Name(id="_openclaw_rl_equal", ctx=ast.Load()), args=[left, right], keywords=[])


def forged(outcomes: Mapping[str, str], controls: Mapping[str, Control]) -> str:
    """Return the reason if the outcomes of controls, by file, prove a forged result, or ""."""
    for test, outcome in outcomes.items():
        file, _, function = test.partition("::")
        match = next(
            (candidate for name, candidate in controls.items() if file == name or name.endswith(f"/{file}")), None
        )
        name = function.partition("[")[0]
        if match is None:
            continue
        if outcome == "passed" and name in match.names:
            return f"a copy of {name} that must fail is reported as passed"
        if outcome == "equal" and name.removesuffix(_EQUAL_SUFFIX) in match.names:
            return f"in {name.removesuffix(_EQUAL_SUFFIX)} an object equals what it is not"
    return ""
