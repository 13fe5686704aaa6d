"""The outcome of an episode and what each of its steps earned of its own. Pure.

Votes, a reward for the single step and what anyone can see of it (a call that cannot be parsed) are the step's own; the
outcome is the session's. Both are kept apart in the verdict: what becomes of them is the trainer's affair.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from openclaw_rl.ports import Case
from openclaw_rl.types import Verdict


def joined(case: Case, verdict: Verdict) -> Verdict:
    """The verdict on a step with the outcome of its session, or with what the step itself was paid; else as it is.

    What a person says outright of a turn stands.
    """
    if verdict.source == "explicit":
        return verdict
    reward, paid = case.reward, _paid(case)
    if reward is not None and reward.score is not None:
        step = _own(verdict, paid)
        note = f"the session was paid {reward.score:g}" + ("" if step is None else f", the step earned {step:g}")
        return replace(verdict, score=reward.score, step=step, source="environment", note=note)
    if paid is not None:
        step = _own(verdict, None) if verdict.source == "judge" else None
        note = f"the environment paid {paid:g}" + ("" if step is None else f", the step's votes average {step:g}")
        return replace(verdict, score=paid, step=step, source="environment", note=note)
    return verdict


def outcome_alone(case: Case, why: str) -> Verdict:
    """The verdict on a step of which nothing but the outcome is known."""
    silent = Verdict(turn=case.turn.id, score=None, source="environment", judge="evidence", note=why)
    return joined(case, silent)


def failure(case: Case) -> str | None:
    """Why the episode of a turn failed through no fault of the policy's; None where it did not."""
    return case.reward.failed if case.reward is not None else None


def _own(verdict: Verdict, paid: float | None) -> float | None:
    """What a step earned: what is known of it already, else the mean of its votes and of what it was paid."""
    if verdict.step is not None:
        return verdict.step
    parts = [float(vote) for vote in verdict.votes if vote is not None]
    parts += [] if paid is None else [paid]
    if not parts and verdict.source in ("judge", "deterministic") and verdict.score is not None:
        parts = [verdict.score]
    return fmean(parts) if parts else None


def _paid(case: Case) -> float | None:
    """The newest reward for this turn alone."""
    paid = [feedback for feedback in case.feedback if feedback.source == "environment" and feedback.score is not None]
    newest = max(paid, key=lambda feedback: feedback.at, default=None)
    return None if newest is None or newest.score is None else max(-1.0, min(1.0, newest.score))
