"""Few replies that seem bad are no proof: other prompts and longer replies, beside the base model's, decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from openclaw_rl.gate.checks import Check, ProbeReply
from openclaw_rl.gate.examiner import Examiner
from openclaw_rl.gate.probes import Probe, everyday_probes
from openclaw_rl.types import Version

MORE_PROBES = 12
"""further prompts for a version whose replies seem degenerate, or to have lost relevance since the base model"""
LONGER = 3
"""times the usual tokens for a reply to them"""
VALID_FOR = 4
"""versions for which a second look that found nothing holds, unless it seems to have become worse"""

Compare = Callable[[Sequence[ProbeReply], Sequence[ProbeReply]], Check]
"""a check of the candidate's replies beside the base model's"""


class SecondLook:
    """Repeats a failed check on other prompts. What it finds holds for some versions, unless one seems worse."""

    def __init__(self, *, tokens: int) -> None:
        self._tokens = LONGER * tokens
        self._passed: dict[str, tuple[int, int]] = {}  # by check: the version last found sound, how bad it had seemed

    async def decide(
        self, seen: Check, bad: int, compare: Compare, examiner: Examiner, candidate: Version, asked: Sequence[Probe]
    ) -> Check:
        """What replaces a check that failed on ``asked``, with ``bad`` replies; its first numbers are kept."""
        number, before = self._passed.get(seen.name, (-VALID_FOR, 0))
        if bad <= before and candidate.number < number + VALID_FOR:
            return Check(name=seen.name, ok=True, detail=f"{seen.detail}; version {number} was found sound on others")
        others = everyday_probes(MORE_PROBES, besides=asked, tokens=self._tokens)
        both = (candidate, base_of(candidate))
        found = compare(*[await examiner.replies(version, others, compared=False) for version in both])
        if found.ok is None:
            return seen  # there are no other prompts
        if found.ok:
            self._passed[seen.name] = candidate.number, bad
        return replace(found, numbers={**found.numbers, "at_first": dict(seen.numbers)})


def base_of(version: Version) -> Version:
    """The base model as a version."""
    return Version(number=0, parent=None, base=version.base)
