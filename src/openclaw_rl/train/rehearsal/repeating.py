"""What a step of turns repeats of notes that were learned, so that going on does not undo them. Pure.

The replies are those of the turns themselves, which were sampled without the note; the teacher has it. So nothing has
to be sampled, and in a packed tree the policy computes no token more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from openclaw_rl.types import Sample


class Said(NamedTuple):
    """What a user had learned: all their learned rules in a line, and the number of the newest note."""

    note: int
    rule: str


def beside(samples: Sequence[Sample], learned: Mapping[str, Said], *, share: float) -> list[Sample]:
    """A rehearsal of so many of these turns, spread over them, by the user's own learned notes.

    Not of a reply that was sampled under another prompt than its own (some other note is in force there), and not of
    an environment's.
    """
    fit = [one for one in samples if one.user in learned and one.logprobs is not None and one.played is None]
    count = min(len(fit), math.ceil(len(samples) * share))
    chosen = (fit[at * len(fit) // count] for at in range(count))
    return [_repeated(one, learned[one.user]) for one in chosen]


def _repeated(sample: Sample, said: Said) -> Sample:
    return replace(
        sample,
        turn=f"{sample.turn} under note {said.note}",
        score=None,
        advantage=None,
        group=None,
        recalled=None,
        teachers=(sample.prompt.hinted(said.rule),),
        rehearses=str(said.note),
    )
