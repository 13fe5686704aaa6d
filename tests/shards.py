"""The suite in parts that take about equally long: what `--shard I/N` runs, by the seconds that each file took."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
MEASURED = HERE / "durations.json"
"""by test file: seconds of its small stories, and of its tests that are marked slow; `make durations` writes it"""
SLOW_FILE = re.compile(r"^pytestmark = .*mark\.slow", re.M)
LOADS_TORCH = re.compile(r"^(?:import|from) (?:torch|transformers|test_local_\w+|tiny)\b", re.M)
CHARACTERS_PER_SECOND = 2_500.0
"""how much of a test file that nobody has timed yet is taken to run in a second"""


class Cost(NamedTuple):
    seconds: float
    torch: bool


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="1/1", metavar="I/N", help="only the I-th of N parts of the suite, by file")
    parser.addoption("--durations-to", metavar="FILE", help="write there what each test file took, in seconds")


def pytest_configure(config: pytest.Config) -> None:
    if place := config.getoption("--durations-to"):
        config.pluginmanager.register(Durations(Path(place)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of other shards, and in `make fast` those that are slow as a whole: nothing is imported."""
    part, parts = (int(number) for number in config.getoption("--shard").split("/"))
    if parts == 1 or collection_path.suffix != ".py":
        return None
    return collection_path not in shards(parts, config.getoption("-m") == "not slow")[part - 1] or None


class Durations:
    """Notes how long each file takes, its fixtures included, and writes it at the end."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.took: dict[str, list[float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.split("::")[0].removeprefix(f"{HERE.name}/")
        self.took.setdefault(file, [0.0, 0.0])["slow" in report.keywords] += report.duration

    def pytest_sessionfinish(self) -> None:
        rounded = {file: [round(seconds, 1) for seconds in both] for file, both in self.took.items()}
        self.place.write_text(json.dumps(rounded))


@cache
def shards(parts: int, fast: bool) -> list[set[Path]]:
    """All test files in so many parts; ``fast`` leaves out those that are slow as a whole."""
    texts = {path: path.read_text() for path in HERE.rglob("test_*.py")}
    left = {path: text for path, text in texts.items() if not (fast and SLOW_FILE.search(text))}
    return divide({path: _cost(path, text, fast=fast) for path, text in left.items()}, parts)


def _cost(path: Path, text: str, *, fast: bool) -> Cost:
    small, slow = measured().get(str(path.relative_to(HERE)), (len(text) / CHARACTERS_PER_SECOND, 0.0))
    return Cost(seconds=small if fast else small + slow, torch=LOADS_TORCH.search(text) is not None)


@cache
def measured() -> dict[str, tuple[float, float]]:
    return {file: (small, slow) for file, (small, slow) in json.loads(MEASURED.read_text()).items()}


def divide(costs: dict[Path, Cost], parts: int) -> list[set[Path]]:
    """The longest first, each to the part that is done first. As few parts have torch as its files fill."""
    found: list[set[Path]] = [set() for _ in range(parts)]
    loads = [0.0] * parts
    for path, cost in sorted(costs.items(), key=lambda item: (not item[1].torch, -item[1].seconds, item[0])):
        open_to = loads[: with_torch(costs, parts)] if cost.torch else loads
        at = open_to.index(min(open_to))
        found[at].add(path)
        loads[at] += cost.seconds
    return found


def with_torch(costs: dict[Path, Cost], parts: int) -> int:
    """How many parts are to load torch, which takes seconds."""
    total = sum(cost.seconds for cost in costs.values())
    share = sum(cost.seconds for cost in costs.values() if cost.torch) / total if total else 0.0
    return max(1, round(parts * share))
