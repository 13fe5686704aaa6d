"""The suite in parts that take about equally long: what `--shard I/N` runs, by the seconds that each file took."""

from __future__ import annotations

import json
import re
from functools import cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
MEASURED = HERE / "durations.json"
"""by test file: seconds of its small stories, and of its tests that are marked slow; `make durations` writes it"""
SLOW_FILE = re.compile(r"^pytestmark = .*mark\.slow", re.M)
NEEDS = {
    "torch": re.compile(
        r"^(?:import|from) (?:torch|transformers|test_local_\w+|tiny|openclaw_rl\.app\.doctor)\b", re.M
    ),
    "clients": re.compile(r"^ *(?:import|from) (?:openai|anthropic)\b", re.M),
    "postgres": re.compile(r"\b(?:ServerPlace|PostgresServer|place: Place)\b"),
}
"""what takes a process seconds to load or to start, and how a test file shows that it needs it: by what it imports or takes"""
SLACK = 0.05
"""how much of a part a need may take beyond those that it fills, before it is met in one more"""
CHARACTERS_PER_SECOND = 2_500.0
"""how much of a test file that nobody has timed yet is taken to run in a second"""


class Cost(NamedTuple):
    seconds: float
    need: str | None
    """the first of `NEEDS` that it has"""


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
    need = next((name for name, shows in NEEDS.items() if shows.search(text)), None)
    return Cost(seconds=small if fast else small + slow, need=need)


@cache
def measured() -> dict[str, tuple[float, float]]:
    return {file: (small, slow) for file, (small, slow) in json.loads(MEASURED.read_text()).items()}


def divide(costs: dict[Path, Cost], parts: int) -> list[set[Path]]:
    """The longest first, each to the part that is done first. What has a need goes only where that is met anyway."""
    found: list[set[Path]] = [set() for _ in range(parts)]
    loads = [0.0] * parts
    homes = homes_of(costs, parts)
    for path, cost in sorted(costs.items(), key=lambda item: (item[1].need is None, -item[1].seconds, item[0])):
        at = min(homes.get(cost.need, range(parts)), key=lambda part: loads[part])
        found[at].add(path)
        loads[at] += cost.seconds
    return found


def homes_of(costs: dict[Path, Cost], parts: int) -> dict[str | None, list[int]]:
    """Which parts meet which need: as few as its files fill, and others for each need as far as there are any."""
    total = sum(cost.seconds for cost in costs.values()) or 1.0
    homes: dict[str | None, list[int]] = {}
    for need in NEEDS:
        share = sum(cost.seconds for cost in costs.values() if cost.need == need) / total
        begin = sum(map(len, homes.values()))
        homes[need] = [(begin + each) % parts for each in range(max(1, ceil(parts * share - SLACK)))]
    return homes
