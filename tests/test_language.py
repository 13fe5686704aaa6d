"""The package's words stay plain: figures over all docstrings, comments and names, with room for single cases."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "src" / "openclaw_rl").rglob("*.py"))
PER = 10_000
MOST = {
    r"\bwhat\b": 10,
    r"\b(?:said|says?|saying|tells?|told|hears?|heard|speaks?|spoken)\b": 10,
    r"\b(?:comes?|came|goes|went|stands?|stood|lies|lay)\b": 10,
    r"\b(?:nobody|somebody|anybody|everybody|whoever)\b": 3,
}
"""by words that a program does not do: how often they may occur in so many words (`PER`)"""
OPENERS = ("What", "Whether", "How", "Who", "Why", "Where", "Which")
PRONOUNS = frozenset(
    re.findall(
        r"\w+",
        "found told said one ones ours theirs mine done known kept made asked given wanted seen other others each some few"
        " more rest left heard shown meant taught held own alone whole both",
    )
)


@cache
def trees() -> list[tuple[str, ast.Module]]:
    return [(source, ast.parse(source)) for source in (file.read_text(encoding="utf-8") for file in FILES)]


def prose() -> Iterator[str]:
    """All docstrings, texts that stand alone, and comments."""
    for source, tree in trees():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.value.value
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.string


@pytest.mark.slow
def test_sentences_name_their_subjects() -> None:
    text = "\n".join(prose())
    count = len(re.findall(r"[A-Za-z']+", text))
    found = {pattern: len(re.findall(pattern, text, re.I)) * PER / count for pattern in MOST}
    assert {pattern: rate for pattern, rate in found.items() if rate > MOST[pattern]} == {}


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [
        text
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
    ]
    assert sum(text.startswith(OPENERS) for text in texts) <= 0.02 * len(texts)


def test_names_are_nouns() -> None:
    names = [
        name
        for _, tree in trees()
        for node in ast.walk(tree)
        for name in (
            [node.id]
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else [node.arg]
            if isinstance(node, ast.arg)
            else []
        )
    ]
    assert sum(name in PRONOUNS for name in names) <= 0.025 * len(names)


def test_the_ten_files_of_the_manual_are_read_in_an_afternoon() -> None:
    manual = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    files = re.findall(r"^\| `([\w/]+\.py)` \|", manual, re.MULTILINE)
    lines = {
        name: len((ROOT / "src" / "openclaw_rl" / name).read_text(encoding="utf-8").splitlines()) for name in files
    }
    assert len(files) == 10
    assert sum(lines.values()) < 3000, lines


@pytest.mark.parametrize("pattern", MOST)
def test_the_patterns_find_what_they_are_for(pattern: str) -> None:
    assert re.search(pattern, "What nobody said comes later.", re.I)
