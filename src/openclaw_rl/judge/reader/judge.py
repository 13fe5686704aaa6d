"""The `reader` judge, the default: learned models read the user's words, the rules the tools' results."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import anyio

from openclaw_rl.errors import BackendError, ConfigError
from openclaw_rl.judge.custom import reaction_of, verdict_of
from openclaw_rl.judge.evidence import heard_reaction, reply_of, user_hearing, written
from openclaw_rl.judge.explain import Explanation
from openclaw_rl.judge.hearing import Hearing, reasons
from openclaw_rl.judge.hints import HintLimits
from openclaw_rl.judge.reaction import Reaction
from openclaw_rl.judge.reader.combination import (
    KINDS,
    Combination,
    KindLogprobs,
    MessageKind,
    from_json,
    normalised,
    shipped_combination,
)
from openclaw_rl.ports import Case, LabelledText, Policy, Scores, SupportsCandidates
from openclaw_rl.text import head_and_tail
from openclaw_rl.types import Tokens, Verdict, Version

# The classifier: a LoRA adapter of the served model that reads request, reply and message and names the kind.
#
# It answers with the log-probs of six words after a fixed text, in one scoring call that gives way to users' requests.
# Whatever goes wrong, the n-grams speak alone: no verdict waits for it.

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent / "classifier"
"""the adapter for the embedded model, with the identity of the base weights that it belongs to"""
NUMBER = 2_000_000_000
"""the adapter's number among the versions: no run trains so many"""
BUDGETS = {"request": 96, "reply": 224, "message": 224}
"""tokens of each part, head and tail kept, as in training"""
QUESTION = "This message is"
CHARACTERS = 12
"""per token of a budget: what is longer is cut before it is encoded"""
_TOP = 128
"""of the likeliest tokens, among which the six words are looked for"""
_REST = 64
"""messages at most that it is left in peace after it failed: one, and twice as many each time"""


class KindClassifier(Protocol):
    """Names the kind of a message beside its request and reply; None where it cannot say now."""

    @property
    def combination(self) -> Combination: ...

    async def read(self, request: str, reply: str, message: str) -> KindLogprobs | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierFolder:
    """A trained adapter, the base weights for which it was trained, and how far it is believed."""

    folder: Path
    base: str
    combination: Combination


def classifier_for(base: str, fitted: Path) -> ClassifierFolder | None:
    """The adapter for the base weights ``base``: one of ``fitted``, else the one that comes with the package."""
    found = (classifier_in(folder) for folder in (fitted_folder(fitted, base), SHIPPED))
    return next((each for each in found if each is not None and each.base == base), None)


def fitted_folder(fitted: Path, base: str) -> Path:
    """Where the adapter for ``base`` is kept among those that were fitted here."""
    return fitted / re.sub(r"[^A-Za-z0-9._-]+", "_", base)


def classifier_in(folder: Path) -> ClassifierFolder | None:
    """The adapter in ``folder``; None unless it is whole."""
    about = folder / "reader.json"
    if not (about.is_file() and (folder / "adapter_model.safetensors").is_file()):
        return None
    told = json.loads(about.read_text())
    own = told.get("combination")
    try:
        believed = shipped_combination() if own is None else from_json(own, name=str(about))
    except ConfigError:
        log.warning("reader.classifier of an earlier release: fit it again with judge --fit folder=%s", folder)
        return None
    return ClassifierFolder(folder=folder, base=str(told["base"]), combination=believed)


def parts(request: str, reply: str, message: str) -> list[tuple[str, int]]:
    """The pieces of the text, each with the most tokens it may have; each is encoded by itself, as in training."""
    before = [(f"User: {request}\n", BUDGETS["request"]), (f"Assistant: {reply}\n", BUDGETS["reply"])]
    said = [(f"User: {message}\n", BUDGETS["message"]), (QUESTION, 16)]
    return said if not request and not reply else [*before, *said]


def labelled(request: str, reply: str, message: str, kind: MessageKind) -> LabelledText:
    """An exchange as the classifier is fitted to it."""
    return LabelledText(
        parts=tuple(parts(request, reply, message)),
        bare=tuple(parts("", "", message)),
        label=KINDS.index(kind),
    )


class PolicyClassifier:
    """The classifier on a policy that can hold a candidate beside the live version. Loaded with the first message."""

    def __init__(self, policy: Policy, find: Callable[[str], ClassifierFolder | None], *, seconds: float) -> None:
        self._policy, self._find, self._seconds = policy, find, seconds
        self._trained: ClassifierFolder | None = None
        self._labels: tuple[int, ...] | None = None
        self._loading = anyio.Lock()
        self._rest = 0
        self._skip = 0

    @property
    def trained(self) -> ClassifierFolder | None:
        """The adapter for the very base weights of the policy; None where there is none, or it cannot be held."""
        if self._trained is None and isinstance(self._policy, SupportsCandidates):
            self._trained = self._find(self._policy.base)
        return self._trained

    @property
    def combination(self) -> Combination:
        """How its answers are weighed beside the other voices."""
        return shipped_combination() if self.trained is None else self.trained.combination

    async def read(self, request: str, reply: str, message: str) -> KindLogprobs | None:
        trained = self.trained
        if trained is None or self._skip > 0:
            self._skip = max(0, self._skip - 1)
            return None
        try:
            with anyio.fail_after(self._seconds):
                found = await self._ask(trained, request, reply, message)
        except (BackendError, TimeoutError) as error:
            self._rest = self._skip = min(_REST, max(1, 2 * self._rest))
            log.info("reader.classifier unavailable reason=%s: %s", type(error).__name__, error)
            return None
        self._rest = self._skip = 0
        return found

    async def _ask(self, trained: ClassifierFolder, request: str, reply: str, message: str) -> KindLogprobs | None:
        async with self._loading:
            labels = self._labels or await self._load(trained)
        prompt = [token for text, most in parts(request, reply, message) for token in await self._encode(text, most)]
        scores = await self._policy.score(tuple(prompt), (labels[0],), version=NUMBER, top_k=_TOP)
        return _kinds(scores, labels)

    async def _load(self, trained: ClassifierFolder) -> tuple[int, ...]:
        """Load the adapter; the token of each kind's word."""
        adapter = str(trained.folder)
        version = Version(number=NUMBER, parent=0, base=trained.base, adapter=adapter, note="the reader")
        await cast(SupportsCandidates, self._policy).admit(version)
        words = [await self._encode(f" {kind}", 8) for kind in KINDS]
        self._labels = tuple(word[0] for word in words)
        return self._labels

    async def _encode(self, text: str, most: int) -> list[int]:
        room = most * CHARACTERS
        short = text if len(text) <= room else text[: room * 2 // 3] + text[-room // 3 :]
        tokens: Tokens = await self._policy.tokenize(short)
        return head_and_tail(tokens[:-1], most)  # without the end of turn, which `tokenize` appends


def _kinds(scores: Scores, labels: Sequence[int]) -> KindLogprobs | None:
    """The six words' log-probs among themselves; one that is not among the likeliest is below all that are."""
    likeliest = dict(zip(scores.top_tokens[0], scores.top_logprobs[0], strict=True))
    likeliest[labels[0]] = scores.logprobs[0]
    if not any(label in likeliest for label in labels[1:]):
        return None
    least = min(likeliest.values())
    return normalised([likeliest.get(label, least) for label in labels])


VERSION = "reader-1"


def read_case(case: Case) -> Reaction:
    """What a case says by n-grams and rules alone, at once."""
    hearing = user_hearing(case)
    return reaction_of(case) if hearing is None else heard_reaction(case, hearing)


class ReaderJudge:
    """Reads the user's next message beside the request and the reply; abstains rather than guess.

    ``classifier`` is asked where there is one; where it cannot answer the n-grams speak alone.
    """

    name = "reader"

    def __init__(self, *, limits: HintLimits, classifier: KindClassifier | None = None) -> None:
        self._limits, self._classifier = limits, classifier

    @property
    def at_work(self) -> str:
        """Who reads."""
        return "reader (n-grams and classifier)" if self._classifier is not None else "reader (n-grams)"

    async def judge(self, case: Case) -> Verdict:
        """What the next state says for sure; ``score`` None otherwise."""
        begun = time.perf_counter()
        hearing = await self._hear(case)
        return self._verdict(case, hearing, seconds=time.perf_counter() - begun)

    async def explain(self, case: Case) -> Explanation:
        """What each voice said, and the n-grams that weighed most."""
        hearing = await self._hear(case)
        verdict = self._verdict(case, hearing, seconds=0.0)
        lines = (f"rules: {verdict.score!r}: {verdict.note}",) if hearing is None else _told(hearing, case)
        return Explanation(judge=self.name, prompt_version=VERSION, ballots=lines, verdict=verdict, note=verdict.note)

    async def _hear(self, case: Case) -> Hearing | None:
        """None where the user wrote nothing: tools' results are left to the rules."""
        exchange, asked = written(case), self._classifier
        if exchange is None or asked is None:
            return user_hearing(case)
        said = await asked.read(exchange.request, reply_of(case), exchange.message)
        return user_hearing(case, classifier=said, combination=asked.combination)

    def _verdict(self, case: Case, hearing: Hearing | None, *, seconds: float) -> Verdict:
        reaction: Reaction = reaction_of(case) if hearing is None else heard_reaction(case, hearing)
        verdict = verdict_of(case, reaction, limits=self._limits, judge=self.name, version=VERSION)
        return replace(verdict, seconds=seconds)


def _told(hearing: Hearing, case: Case) -> tuple[str, ...]:
    exchange = written(case)
    weighed = () if exchange is None else reasons(hearing, *exchange, reply=reply_of(case))
    said = hearing.classifier
    return (
        f"together: {_shares(hearing.estimate)} ({hearing.group})",
        f"n-grams: {_shares(hearing.ngrams)}",
        "classifier: silent" if said is None else f"classifier: {_shares(said)}",
        f"rules: {hearing.rules.score!r}: {hearing.rules.note}",
        "weighed most: " + ", ".join(f"{reason.feature!r} {reason.weight:+.2f}" for reason in weighed),
    )


def _shares(logprobs: KindLogprobs) -> str:
    """The kinds with five percent or more, likeliest first."""
    shares = sorted(((math.exp(value), kind) for kind, value in zip(KINDS, logprobs, strict=True)), reverse=True)
    return ", ".join(f"{kind} {share:.2f}" for share, kind in shares if share >= 0.05)
