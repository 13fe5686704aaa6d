"""What the tests say: verdicts by test, and what they are worth for an instance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.envs.swe.instances import Instance

PASSED = "passed"
_GOOD = (PASSED, "xfailed")
SHOWN = 12
"""failing tests that are named"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The outcome of each test that ran, by its name as pytest has it; ``stopped`` says why the run did not end."""

    outcomes: Mapping[str, str]
    seconds: float
    output: str = ""
    stopped: str = ""

    def passes(self, test: str) -> bool:
        """Whether a test passed. A name that was cut at a space, as in SWE-bench's lists, means all that it begins."""
        if test in self.outcomes:
            return self.outcomes[test] in _GOOD
        meant = [outcome for name, outcome in self.outcomes.items() if name.partition(" ")[0] == test]
        return bool(meant) and all(outcome in _GOOD for outcome in meant)

    def named(self, outcome: str) -> list[str]:
        """The tests that came out so."""
        return [test for test, one in self.outcomes.items() if one == outcome or (outcome == PASSED and one in _GOOD)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """How many of an instance's tests pass: of those that failed, and of those that did not."""

    fixed: int
    failing: int
    kept: int
    passing: int

    @property
    def resolved(self) -> bool:
        return self.fixed == self.failing and self.kept == self.passing

    def score(self, *, partial: bool) -> float:
        """1 where all pass, else 0; ``partial``: the share that is fixed, times the share that still passes."""
        if self.resolved or not partial:
            return float(self.resolved)
        return self.fixed / max(self.failing, 1) * (self.kept / max(self.passing, 1))


def graded(instance: Instance, verdicts: Verdicts) -> Graded:
    """The verdicts, by the instance's two lists."""
    return Graded(
        fixed=_passing(instance.failing, verdicts),
        failing=len(instance.failing),
        kept=_passing(instance.passing, verdicts),
        passing=len(instance.passing),
    )


def _passing(tests: Sequence[str], verdicts: Verdicts) -> int:
    return sum(verdicts.passes(test) for test in tests)


def files_of(tests: Iterable[str]) -> list[str]:
    """The files that tests are in, each once."""
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


def told(verdicts: Verdicts) -> str:
    """The verdicts in a few lines, failing tests by name."""
    failed = [*verdicts.named("failed"), *verdicts.named("error")]
    head = f"{len(verdicts.named(PASSED))} passed, {len(failed)} failed in {verdicts.seconds:.1f} s"
    lines = [f"FAILED {test}" for test in failed[:SHOWN]]
    if len(failed) > SHOWN:
        lines.append(f"... and {len(failed) - SHOWN} more")
    return "\n".join([*lines, f"[{verdicts.stopped or head}]"])
