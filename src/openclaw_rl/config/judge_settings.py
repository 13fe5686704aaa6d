"""Settings for loop 3, which judges."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openclaw_rl.config.values import Address, Device, Dtype, Location, ModelPlace, Options, Plugin, Section, Variable
from openclaw_rl.types import LONGEST_NOTE


class LlmJudgeSection(Section):
    """The llm judge: a model that votes on each turn."""

    base_url: Address | None = Field(default=None, description="address of the llm judge, OpenAI-compatible, up to /v1")
    model: str | None = Field(default=None, description="the judge's model; 'policy': the policy's own base weights")
    api_key_env: Variable | None = Field(default=None, description="environment variable that holds the endpoint's key")
    votes: int = Field(default=3, ge=1, le=99, description="votes per turn")
    threshold: float = Field(default=0.5, gt=0, le=1, description="share of the answers required for the winning score")
    quorum: int | None = Field(
        default=None, ge=1, le=99, description="answers required for a score; not set: more than half"
    )
    temperature: float = Field(default=0.6, ge=0, le=2, description="sampling temperature for the votes")
    max_tokens: int = Field(default=512, ge=16, le=32768, description="most tokens in one answer")
    deadline: float = Field(default=60.0, gt=0, le=3600, description="time limit for one vote, in seconds")
    retries: int = Field(default=3, ge=0, le=20, description="further tries after 429, 5xx or a timeout")
    breaker_failures: int = Field(default=5, ge=1, le=1000, description="consecutive failures that pause judging")
    breaker_seconds: float = Field(default=60.0, gt=0, le=86_400, description="length of that pause")
    daily_tokens: int | None = Field(default=None, ge=0, description="token budget per day; not set: no limit")
    history: int = Field(default=6, ge=0, le=1000, description="number of messages before the reply in the prompt")
    evidence_tokens: int = Field(
        default=3000, ge=64, description="limit for each piece of evidence, in the judge's tokens"
    )
    prompts_dir: Location | None = Field(default=None, description="folder with prompts that replace the shipped ones")


class JudgeModelsSection(Section):
    """Judge models hosted here, each in its own process."""

    score: ModelPlace | None = Field(
        default=None,
        description="model for scores: a folder, a Hugging Face id, an address up to /v1; not set: the model for hints",
    )
    hints: ModelPlace | None = Field(
        default=None,
        description="model for hints: a folder, a Hugging Face id, an address; not set: the model for scores",
    )
    device: Device = Field(default="auto", description="auto, cpu, mps, cuda or cuda:N; auto: a GPU of gpus.judge")
    dtype: Dtype = Field(default="auto", description="number format; auto: float32 for small models, else the fastest")
    context: int = Field(default=16_384, ge=256, description="most tokens in a question and its answer")


class ClassifierSection(Section):
    """A sequence-classification model as judge.models.score: its input and the meaning of its labels."""

    reads: Literal["exchange", "message"] = Field(
        default="exchange", description="input: request, reply and next message (exchange), or the next message alone"
    )
    positive: tuple[str, ...] = Field(default=(), description="labels for a satisfied user; empty: by their names")
    neutral: tuple[str, ...] = Field(
        default=(), description="labels for no opinion; empty: by their names; all others mean a dissatisfied user"
    )
    hypothesis: str = Field(
        default="The user is satisfied with the reply.",
        min_length=1,
        description="hypothesis for an inference model (NLI) about the exchange",
    )


class FeedbackClassifierSection(Section):
    """The feedback classifier for users' messages, the default judge's first source."""

    classifier: bool = Field(
        default=True,
        description="use the classifier beside the n-grams if the served model has one (a copy of its layers: 0.4 GB"
        " for the embedded model)",
    )
    seconds: float = Field(default=30.0, gt=0, le=600, description="time limit for the classifier on one message")


class JudgeSection(Section):
    """Loop 3, from outcomes to verdicts."""

    kind: Plugin = Field(
        default="auto",
        min_length=1,
        description="judge: auto (the feedback classifier, then llm if one is set), feedback-classifier, rules, llm",
    )
    custom: Plugin | None = Field(default=None, description="your own judge in place of kind, a plugin")
    behaviour: bool = Field(
        default=True, description="if the judge has no opinion, count a repeated request as half a complaint"
    )
    ask_in_doubt: bool = Field(
        default=False,
        description="in 'chat', ask for the meaning of a message that is probably a correction but was not understood",
    )
    workers: int = Field(default=4, ge=1, le=256, description="concurrent judge calls")
    max_hints: int = Field(default=3, ge=0, le=16, description="most hints kept per turn, shortest first")
    hint_min: int = Field(
        default=11,
        ge=1,
        le=LONGEST_NOTE,
        description="fewest characters in a hint; a Chinese one counts for five, a kana or Hangul one for three",
    )
    hint_max: int = Field(
        default=LONGEST_NOTE, ge=1, le=LONGEST_NOTE, description="most characters in a hint, which may become a note"
    )
    step_votes: bool | None = Field(
        default=None,
        description="also judge each step of an environment; not set: only with an llm or a custom judge",
    )
    trusted_envs: tuple[str, ...] = Field(
        default=(), description="environments, by the NAME of their key, whose text may become a hint"
    )
    feedback_classifier: FeedbackClassifierSection = Field(default_factory=FeedbackClassifierSection)
    llm: LlmJudgeSection = Field(default_factory=LlmJudgeSection)
    models: JudgeModelsSection = Field(default_factory=JudgeModelsSection)
    classifier: ClassifierSection = Field(default_factory=ClassifierSection)
    options: Options = Field(default_factory=dict, repr=False, description="free-form table for a custom judge")
