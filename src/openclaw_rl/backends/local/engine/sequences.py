"""What the engine works on: a reply being generated, a reply being scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from openclaw_rl.backends.hf.detokenizer import ReplyText
from openclaw_rl.backends.local.engine.constraint import TokenConstraint
from openclaw_rl.backends.local.engine.events import Finished, ScoreFinished
from openclaw_rl.backends.local.engine.kv_cache import SequenceSlot
from openclaw_rl.backends.local.engine.sampler import RequestSampler, SampledToken
from openclaw_rl.ports import Alternative, Delta, Piece, Scores
from openclaw_rl.types import Finish, Logprobs, Sampling, Tokens


@dataclass(eq=False, slots=True)
class Generation:
    """A reply being generated. ``tokens`` are the prompt and what was sampled."""

    id: int
    version: int
    tokens: list[int]
    prompt: int
    sampler: RequestSampler
    words: ReplyText
    text_of: Callable[[int], str]
    scope: str = ""
    constraint: TokenConstraint | None = None
    slot: SequenceSlot | None = None
    logprobs: list[float] = field(default_factory=list)
    allowed: list[float] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        id: int,
        version: int,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        context: int,
        ends: frozenset[int],
        scope: str = "",
        decode: Callable[[Sequence[int]], str],
    ) -> Generation:
        room = context - len(prompt)

        def text_of(token: int) -> str:
            return decode([token])

        return cls(
            id=id,
            version=version,
            tokens=list(prompt),
            prompt=len(prompt),
            sampler=RequestSampler.of(sampling, prompt, text_of),
            words=ReplyText(decode, stops=sampling.stop, ends=ends, limit=min(sampling.max_tokens or room, room)),
            scope=scope,
            text_of=text_of,
        )

    def hold(self, constraint: TokenConstraint) -> None:
        """Hold the reply to a format, before its first token."""
        self.constraint = self.sampler.constraint = constraint

    @property
    def num_tokens(self) -> int:
        """Tokens whose values must be in the cache before the next one can be sampled."""
        return len(self.tokens)

    def take(self, sampled: SampledToken) -> tuple[Delta, Finish | None]:
        """Add a sampled token: what to show for it, and how the reply ends if it does."""
        self.tokens.append(sampled.token)
        self.logprobs.append(sampled.tempered)
        if self.constraint is not None:
            self._held(self.constraint, sampled)
        shown, finish = self.words.take(sampled.token)
        return Delta(text=shown, pieces=(self._piece(sampled),)), finish

    def _held(self, constraint: TokenConstraint, sampled: SampledToken) -> None:
        if (refusal := constraint.refusal) is not None:
            raise refusal
        assert sampled.allowed is not None
        self.allowed.append(sampled.allowed)

    def result(self, finish: Finish) -> Finished:
        """The finished reply."""
        prompt, reply = tuple(self.tokens[: self.prompt]), tuple(self.tokens[self.prompt :])
        allowed = None if self.constraint is None else tuple(self.allowed)
        return Finished(self.id, self.words.text, prompt, reply, tuple(self.logprobs), finish, self.version, allowed)

    def _piece(self, sampled: SampledToken) -> Piece:
        top = tuple(Alternative(token=t, text=self.text_of(t), logprob=value) for t, value in sampled.top)
        return Piece(token=sampled.token, text=self.text_of(sampled.token), logprob=sampled.raw, top=top)


@dataclass(eq=False, slots=True)
class Scoring:
    """A given reply being scored. ``tokens`` are the prompt and the reply without its last, which predicts nothing."""

    id: int
    version: int
    tokens: list[int]
    prompt: int
    reply: Tokens
    temperature: float
    top_k: int
    scope: str = ""
    slot: SequenceSlot | None = None
    logprobs: list[float] = field(default_factory=list)
    top_tokens: list[Tokens] = field(default_factory=list)
    top_logprobs: list[Logprobs] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens whose values must be in the cache before the job is done."""
        return len(self.tokens)

    @property
    def reusable(self) -> int:
        """Tokens that may come from the cache: the rest must be computed, for their logits."""
        return self.prompt - 1 + len(self.logprobs)

    def take(self, logits: torch.Tensor) -> None:
        """Add the log-probs of the reply tokens that ``logits`` `[n, vocabulary]` predict."""
        done = len(self.logprobs)
        values = (logits / self.temperature).log_softmax(-1) if self.temperature != 1.0 else logits.log_softmax(-1)
        targets = torch.tensor(self.reply[done : done + len(values)], device=values.device)
        self.logprobs.extend(values.gather(1, targets[:, None])[:, 0].clamp(max=0.0).tolist())
        if self.top_k:
            best, ids = values.topk(min(self.top_k, values.shape[-1]))
            self.top_tokens.extend(map(tuple, ids.tolist()))
            self.top_logprobs.extend(map(tuple, best.clamp(max=0.0).tolist()))

    def result(self) -> ScoreFinished:
        """The finished score."""
        tops, values = tuple(self.top_tokens), tuple(self.top_logprobs)
        return ScoreFinished(self.id, Scores(logprobs=tuple(self.logprobs), top_tokens=tops, top_logprobs=values))


EngineJob = Generation | Scoring
