"""Every regular expression of the package takes time in proportion to the text, whatever the text is."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from judges import LIMITS

import openclaw_rl
from openclaw_rl.errors import MissingExtra
from openclaw_rl.judge.custom import reaction_of
from openclaw_rl.judge.evidence import decide
from openclaw_rl.judge.prompt import escape
from openclaw_rl.ports import Case
from openclaw_rl.testing import make_completion, make_message, make_outcome, make_turn

CUT = {
    "openclaw_rl.judge.lexicon_en.": 240,  # reaction._CLAUSE
    "openclaw_rl.judge.lexicon_zh.": 240,
    "openclaw_rl.judge.preferences_en.PREFERENCES": 240,
    "openclaw_rl.judge.tools.TABLE": 400,  # tools._LINE
    "openclaw_rl.judge.hints._STATES": 600,  # hints._READ
    "openclaw_rl.preferences.orders.": 600,  # orders.LONGEST; the tables of `signs` are found there first
    "openclaw_rl.preferences.standing.": 600,
}
"""patterns that only ever see a text of so many characters, which their callers cut, from its beginning"""
ATOMS = [
    "a",
    " ",
    "\n",
    "1",
    "<",
    "[",
    "{",
    '"',
    "'",
    "`",
    ">",
    "-",
    "=",
    ".",
    ":",
    "/",
    "_",
    "*",
    "“",
    "「",
    "你",
    "@",
]
ATOMS += ["a ", "a, ", "<a ", "<a>", "[a", "1 ", "1-", "a.", "not ", "is in ", "-eyJ", "\n "]
SMALL, LARGE = 2_000, 16_000
pytestmark = pytest.mark.slow
NOTHING = 0.03
"""seconds that do not matter: a linear pattern needs less for `LARGE`, a quadratic one far more"""


def patterns() -> dict[str, re.Pattern[str]]:
    """All patterns of the package by the name of the place that holds them: in modules, tables, dataclasses, calls."""
    found: dict[tuple[str, int], tuple[str, re.Pattern[str]]] = {}
    for module in pkgutil.walk_packages(openclaw_rl.__path__, "openclaw_rl."):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except (ImportError, MissingExtra):  # an optional package is not here
            continue
        for name, pattern in (*held(vars(loaded), f"{module.name}."), *called(Path(str(loaded.__file__)), module.name)):
            if isinstance(pattern.pattern, str):
                found.setdefault((pattern.pattern, pattern.flags), (name, pattern))
    return dict(found.values())


def held(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, re.Pattern[str]]]:
    if isinstance(value, re.Pattern):
        yield name, value
    elif depth > 3:
        return
    elif isinstance(value, dict):
        for key, part in list(value.items()):
            yield from held(part, f"{name}{key}" if depth == 0 else f"{name}[{key}]", depth + 1)
    elif isinstance(value, list | tuple):
        for at, part in enumerate(value):
            yield from held(part, f"{name}[{at}]", depth + 1)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from held(getattr(value, part.name), f"{name}.{part.name}", depth + 1)


def called(path: Path, module: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Patterns written where they are used: ``re.sub("...", ...)``."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=verb), args=[ast.Constant(value=str(text)), *_]
            ) if verb not in ("compile", "escape"):
                yield f"{module}:{node.lineno}", re.compile(text)


PATTERNS = patterns()


def openings(pattern: str) -> list[str]:
    """Words of a pattern itself: what its alternatives begin with."""
    plain = (
        re.sub(r"\\[AZbBwWdDsSnt]", "", part).replace("\\", "") for part in re.split(r"[|()\[\]{}*+?^$.]", pattern)
    )
    return sorted({part for part in plain if 2 <= len(part) <= 40}, key=lambda part: (-len(part), part))[:6]


def texts(pattern: str, size: int) -> Iterator[str]:
    """Runs of one thing, runs behind an opening, none of them ever closed."""
    words = openings(pattern)
    for atom in (*ATOMS, *words, *(f"{word} " for word in words)):
        yield (atom * (size // len(atom) + 1))[:size] + "\x01"
    for word in (*words[:3], "[", "<a", "“"):
        for run in (" ", "\n", "a", "1"):
            yield word + run * size + "\x01"


def seconds(pattern: re.Pattern[str], text: str, *, whole: bool) -> float:
    begun = time.process_time()
    if whole:
        pattern.match(text)
        pattern.fullmatch(text)
    else:
        for _ in pattern.finditer(text):
            pass
    return time.process_time() - begun


def bound(name: str) -> int | None:
    return next((size for prefix, size in CUT.items() if name.startswith(prefix)), None)


def test_there_are_patterns_to_look_at() -> None:
    assert len(PATTERNS) > 150
    assert all(any(name.startswith(prefix) for name in PATTERNS) for prefix in CUT)


@pytest.mark.parametrize("name", sorted(name for name in PATTERNS if bound(name) is None))
def test_eight_times_the_text_is_not_sixty_four_times_the_work(name: str) -> None:
    pattern = PATTERNS[name]
    for small, large in zip(texts(pattern.pattern, SMALL), texts(pattern.pattern, LARGE), strict=True):
        if seconds(pattern, large, whole=False) < NOTHING:
            continue
        work = min(seconds(pattern, large, whole=False) for _ in range(3))
        before = min(seconds(pattern, small, whole=False) for _ in range(3))
        assert work < max(NOTHING, 20 * before), f"{small[:20]!r} ...: {before:.4f} s, then {work:.4f} s"


@pytest.mark.parametrize("name", sorted(name for name in PATTERNS if bound(name) is not None))
def test_what_is_cut_short_by_its_caller_is_read_in_a_moment(name: str) -> None:
    size = bound(name) or 0
    for text in texts(PATTERNS[name].pattern, size):
        work = seconds(PATTERNS[name], text[:size], whole=True)
        work = work if work < NOTHING else min(seconds(PATTERNS[name], text[:size], whole=True) for _ in range(3))
        assert work < NOTHING, f"{text[:20]!r} ...: {work:.4f} s"


POISON = ["[", "<a>", "<a ", "</a>", "{", '{"a":', "\n", "[ \n", "> ", "```", "“", "no, ", "please ", ". ", "你", "1"]
POISON += ["[HINT_START]", "Summarise this ", "exit code 1", "he said ", "= ", "not ", "use this: "]


@pytest.mark.parametrize("atom", POISON)
def test_a_judge_reads_eight_times_as_much_in_about_eight_times_the_time(atom: str) -> None:
    def work(size: int) -> float:
        text = (atom * (size // len(atom) + 1))[:size]
        turn = make_turn("Plan my week.", completion=make_completion("ok"))
        cases = [
            Case(turn=turn, outcome=make_outcome(turn, next_state=(make_message(role, text),)))
            for role in ("user", "tool")
        ]
        begun = time.process_time()
        for case in cases:
            reaction_of(case)
            decide(case, limits=LIMITS)
        escape(text)
        return time.process_time() - begun

    if work(64_000) > 0.4:
        before, after = min(work(8_000) for _ in range(3)), min(work(64_000) for _ in range(3))
        assert after < max(0.4, 20 * before), f"{before:.3f} s, then {after:.3f} s"
