"""The `feedback-classifier` judge: learned models classify the user's words, rules read the tools' results."""

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
from openclaw_rl.judge.classification import FeedbackClassification, reasons
from openclaw_rl.judge.custom import reaction_of, verdict_of
from openclaw_rl.judge.evidence import classified_reaction, classify_user, reply_of, written
from openclaw_rl.judge.explain import Explanation
from openclaw_rl.judge.feedback_classifier.combination import (
    KINDS,
    Combination,
    KindLogprobs,
    MessageKind,
    from_json,
    normalised,
    shipped_combination,
)
from openclaw_rl.judge.hints import HintLimits
from openclaw_rl.judge.reaction import Reaction
from openclaw_rl.ports import Case, LabelledText, Policy, Scores, SupportsCandidates
from openclaw_rl.text import head_and_tail
from openclaw_rl.types import Tokens, Verdict, Version

# The classifier: a LoRA adapter of the served model that reads request, reply and message and names the kind.
#
# It returns the log-probs of six words after a fixed text, in one scoring call that yields to users' requests. If it
# fails, the n-grams decide alone, so that no verdict waits for it.

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent / "classifier"
"""the adapter for the embedded model, with the identity of its base weights"""
NUMBER = 2_000_000_000
"""the adapter's version number: no run trains so many versions"""
BUDGETS = {"request": 96, "reply": 224, "message": 224}
"""tokens per part, with head and tail kept as in training"""
QUESTION = "This message is"
CHARACTERS = 12
"""characters per token of a budget: longer text is cut before it is encoded"""
_TOP = 128
"""likeliest tokens that are searched for the six words"""
_REST = 64
"""maximum messages skipped after a failure: one at first, twice as many after each further one"""


class KindClassifier(Protocol):
    """Names the kind of a message beside its request and reply; None if it cannot answer now."""

    @property
    def combination(self) -> Combination: ...

    async def read(self, request: str, reply: str, message: str) -> KindLogprobs | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierFolder:
    """A trained adapter, its base weights, and the combination that weighs its answers."""

    folder: Path
    base: str
    combination: Combination


def classifier_for(base: str, fitted: Path) -> ClassifierFolder | None:
    """Return the adapter for the base weights ``base``: one of ``fitted``, else the one shipped with the package."""
    candidates = (classifier_in(folder) for folder in (fitted_folder(fitted, base), SHIPPED))
    return next((candidate for candidate in candidates if candidate is not None and candidate.base == base), None)


def fitted_folder(fitted: Path, base: str) -> Path:
    """Return the folder for ``base`` among the adapters fitted here."""
    return fitted / re.sub(r"[^A-Za-z0-9._-]+", "_", base)


def classifier_in(folder: Path) -> ClassifierFolder | None:
    """Return the adapter in ``folder``; None unless it is complete."""
    about = folder / "reader.json"
    if not (about.is_file() and (folder / "adapter_model.safetensors").is_file()):
        return None
    metadata = json.loads(about.read_text())
    fitted = metadata.get("combination")
    try:
        combination = shipped_combination() if fitted is None else from_json(fitted, name=str(about))
    except ConfigError:
        log.warning("feedback_classifier of an earlier release: fit it again with judge --fit folder=%s", folder)
        return None
    return ClassifierFolder(folder=folder, base=str(metadata["base"]), combination=combination)


def parts(request: str, reply: str, message: str) -> list[tuple[str, int]]:
    """Return the text's pieces with their token limits; each is encoded by itself, as in training."""
    before = [(f"User: {request}\n", BUDGETS["request"]), (f"Assistant: {reply}\n", BUDGETS["reply"])]
    current = [(f"User: {message}\n", BUDGETS["message"]), (QUESTION, 16)]
    return current if not request and not reply else [*before, *current]


def labelled(request: str, reply: str, message: str, kind: MessageKind) -> LabelledText:
    """Return an exchange as a training example of the classifier."""
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
        """Return the adapter for exactly the policy's base weights; None if it is missing or cannot be held."""
        if self._trained is None and isinstance(self._policy, SupportsCandidates):
            self._trained = self._find(self._policy.base)
        return self._trained

    @property
    def combination(self) -> Combination:
        """Return the weights of its answers beside the other estimators."""
        return shipped_combination() if self.trained is None else self.trained.combination

    async def read(self, request: str, reply: str, message: str) -> KindLogprobs | None:
        trained = self.trained
        if trained is None or self._skip > 0:
            self._skip = max(0, self._skip - 1)
            return None
        try:
            with anyio.fail_after(self._seconds):
                logprobs = await self._ask(trained, request, reply, message)
        except (BackendError, TimeoutError) as error:
            self._rest = self._skip = min(_REST, max(1, 2 * self._rest))
            log.info("feedback_classifier.unavailable reason=%s: %s", type(error).__name__, error)
            return None
        self._rest = self._skip = 0
        return logprobs

    async def _ask(self, trained: ClassifierFolder, request: str, reply: str, message: str) -> KindLogprobs | None:
        async with self._loading:
            labels = self._labels or await self._load(trained)
        prompt = [token for text, most in parts(request, reply, message) for token in await self._encode(text, most)]
        scores = await self._policy.score(tuple(prompt), (labels[0],), version=NUMBER, top_k=_TOP)
        return _kinds(scores, labels)

    async def _load(self, trained: ClassifierFolder) -> tuple[int, ...]:
        """Load the adapter; return each kind's token."""
        adapter = str(trained.folder)
        version = Version(number=NUMBER, parent=0, base=trained.base, adapter=adapter, note="the feedback classifier")
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
    """Return the six words' log-probs, normalised; a word outside the likeliest tokens gets their lowest."""
    likeliest = dict(zip(scores.top_tokens[0], scores.top_logprobs[0], strict=True))
    likeliest[labels[0]] = scores.logprobs[0]
    if not any(label in likeliest for label in labels[1:]):
        return None
    least = min(likeliest.values())
    return normalised([likeliest.get(label, least) for label in labels])


VERSION = "reader-1"


def read_case(case: Case) -> Reaction:
    """Return the reaction of a case by n-grams and rules alone, without waiting."""
    classified = classify_user(case)
    return reaction_of(case) if classified is None else classified_reaction(case, classified)


class FeedbackClassifierJudge:
    """Reads the user's next message beside the request and the reply; abstains rather than guess.

    ``classifier`` is asked if there is one; if it cannot answer, the n-grams decide alone.
    """

    name = "feedback-classifier"

    def __init__(self, *, limits: HintLimits, classifier: KindClassifier | None = None) -> None:
        self._limits, self._classifier = limits, classifier

    @property
    def at_work(self) -> str:
        """Return the name of the feedback classifier in use."""
        return (
            "feedback classifier (n-grams and adapter)"
            if self._classifier is not None
            else "feedback classifier (n-grams)"
        )

    async def judge(self, case: Case) -> Verdict:
        """Return the verdict on the next state; ``score`` None unless it is sure."""
        begun = time.perf_counter()
        classified = await self._classify_case(case)
        return self._verdict(case, classified, seconds=time.perf_counter() - begun)

    async def explain(self, case: Case) -> Explanation:
        """Return each estimator's answer, and the n-grams with the highest weight."""
        classified = await self._classify_case(case)
        verdict = self._verdict(case, classified, seconds=0.0)
        lines = (f"rules: {verdict.score!r}: {verdict.note}",) if classified is None else _told(classified, case)
        return Explanation(judge=self.name, prompt_version=VERSION, ballots=lines, verdict=verdict, note=verdict.note)

    async def _classify_case(self, case: Case) -> FeedbackClassification | None:
        """Classify the user's message; return None if there is none: the rules read the tools' results."""
        exchange, classifier = written(case), self._classifier
        if exchange is None or classifier is None:
            return classify_user(case)
        logprobs = await classifier.read(exchange.request, reply_of(case), exchange.message)
        return classify_user(case, classifier=logprobs, combination=classifier.combination)

    def _verdict(self, case: Case, classified: FeedbackClassification | None, *, seconds: float) -> Verdict:
        reaction: Reaction = reaction_of(case) if classified is None else classified_reaction(case, classified)
        verdict = verdict_of(case, reaction, limits=self._limits, judge=self.name, version=VERSION)
        return replace(verdict, seconds=seconds)


def _told(classified: FeedbackClassification, case: Case) -> tuple[str, ...]:
    exchange = written(case)
    weighed = () if exchange is None else reasons(classified, *exchange, reply=reply_of(case))
    logprobs = classified.classifier
    return (
        f"together: {_shares(classified.estimate)} ({classified.group})",
        f"n-grams: {_shares(classified.ngrams)}",
        "classifier: silent" if logprobs is None else f"classifier: {_shares(logprobs)}",
        f"rules: {classified.rules.score!r}: {classified.rules.note}",
        "weighed most: " + ", ".join(f"{reason.feature!r} {reason.weight:+.2f}" for reason in weighed),
    )


def _shares(logprobs: KindLogprobs) -> str:
    """Return the kinds with five percent or more, likeliest first."""
    shares = sorted(((math.exp(value), kind) for kind, value in zip(KINDS, logprobs, strict=True)), reverse=True)
    return ", ".join(f"{kind} {share:.2f}" for share, kind in shares if share >= 0.05)
