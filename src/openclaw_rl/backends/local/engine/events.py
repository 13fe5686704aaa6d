"""Events of the engine's jobs. Plain values: they are sent between processes and need no torch."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.errors import OpenClawError
from openclaw_rl.ports import Delta, Scores
from openclaw_rl.types import Finish, Logprobs, Tokens


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """The next bit of a reply."""

    job: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Finished:
    """A reply that is over: its text, the tokens `[R]` as sampled, their log-probs `[R]`, and what a format left of the
    distribution at each `[R]`."""

    job: int
    text: str
    prompt: Tokens
    tokens: Tokens
    logprobs: Logprobs
    finish: Finish
    version: int
    allowed: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class ScoreFinished:
    """The answer to a score."""

    job: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job that could not be done."""

    job: int
    error: OpenClawError


JobEvent = TokenDelta | Finished | ScoreFinished | JobFailed
