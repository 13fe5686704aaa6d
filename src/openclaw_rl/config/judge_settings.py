"""The settings of loop 3, which judges."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openclaw_rl.config.values import Address, Device, Dtype, Location, ModelPlace, Options, Plugin, Section, Variable
from openclaw_rl.types import LONGEST_NOTE


class LlmJudgeSection(Section):
    """The llm judge: a model that votes on each turn."""

    base_url: Address | None = Field(default=None, description="address of the llm judge, OpenAI-compatible, up to /v1")
    model: str | None = Field(default=None, description="its model; 'policy': the policy's own base weights")
    api_key_env: Variable | None = Field(default=None, description="environment variable that holds the endpoint's key")
    votes: int = Field(default=3, ge=1, le=99, description="votes per turn")
    threshold: float = Field(default=0.5, gt=0, le=1, description="share of the answers that the winning score needs")
    quorum: int | None = Field(default=None, ge=1, le=99, description="answers a score needs; not set: more than half")
    temperature: float = Field(default=0.6, ge=0, le=2, description="temperature of the votes")
    max_tokens: int = Field(default=512, ge=16, le=32768, description="most tokens of one answer")
    deadline: float = Field(default=60.0, gt=0, le=3600, description="seconds one vote may take")
    retries: int = Field(default=3, ge=0, le=20, description="further tries after 429, 5xx or a timeout")
    breaker_failures: int = Field(default=5, ge=1, le=1000, description="failures in a row that pause judging")
    breaker_seconds: float = Field(default=60.0, gt=0, le=86_400, description="length of that pause")
    daily_tokens: int | None = Field(default=None, ge=0, description="tokens it may use a day; not set: no limit")
    history: int = Field(default=6, ge=0, le=1000, description="messages before the reply that it sees")
    evidence_tokens: int = Field(default=3000, ge=64, description="its tokens that each piece of evidence is cut to")
    prompts_dir: Location | None = Field(default=None, description="folder with prompts that replace the shipped ones")


class JudgeModelsSection(Section):
    """Judge models that are hosted here, each in a process of its own."""

    score: ModelPlace | None = Field(
        default=None,
        description="model that scores: a folder, a Hugging Face id, an address up to /v1; not set: the one for hints",
    )
    hints: ModelPlace | None = Field(
        default=None,
        description="model that gives hints: a folder, a Hugging Face id, an address; not set: the one that scores",
    )
    device: Device = Field(default="auto", description="auto, cpu, mps, cuda or cuda:N; auto: a GPU of gpus.judge")
    dtype: Dtype = Field(default="auto", description="number format; auto: float32 for small models, else the fastest")
    context: int = Field(default=16_384, ge=256, description="most tokens of a question and its answer")


class ClassifierSection(Section):
    """A sequence-classification model as judge.models.score: what it reads, and what its labels mean."""

    reads: Literal["exchange", "message"] = Field(
        default="exchange", description="request, reply and what came after, or what came after alone"
    )
    positive: tuple[str, ...] = Field(
        default=(), description="its labels that mean that the user was served well; empty: by their names"
    )
    neutral: tuple[str, ...] = Field(
        default=(), description="its labels that mean no opinion; empty: by their names; all others mean served badly"
    )
    hypothesis: str = Field(
        default="The user is satisfied with the reply.",
        min_length=1,
        description="what a model of inference (NLI) is asked about the exchange",
    )


class ReaderSection(Section):
    """The learned reader of users' messages, the default judge's first voice."""

    classifier: bool = Field(
        default=True,
        description="ask the classifier beside the n-grams where the served model has one (a copy of its layers: "
        "0.4 GB for the embedded model)",
    )
    seconds: float = Field(default=30.0, gt=0, le=600, description="longest that the classifier may take for a message")


class JudgeSection(Section):
    """Loop 3, outcomes to verdicts."""

    kind: Plugin = Field(
        default="auto",
        min_length=1,
        description="who judges: auto (the reader, then llm if one is set), reader, rules, llm",
    )
    custom: Plugin | None = Field(default=None, description="judge of your own in place of kind, a plugin")
    behaviour: bool = Field(
        default=True, description="where the judge is silent, count a request that is made again as half a complaint"
    )
    ask_in_doubt: bool = Field(
        default=False, description="'chat' asks what a message meant that is probably a correction and not understood"
    )
    workers: int = Field(default=4, ge=1, le=256, description="judge calls at once")
    max_hints: int = Field(default=3, ge=0, le=16, description="most hints kept per turn, shortest first")
    hint_min: int = Field(
        default=11,
        ge=1,
        le=LONGEST_NOTE,
        description="fewest characters of a hint; a Chinese one counts for five, a kana or Hangul one for three",
    )
    hint_max: int = Field(
        default=LONGEST_NOTE, ge=1, le=LONGEST_NOTE, description="most characters of a hint, which may become a note"
    )
    step_votes: bool | None = Field(
        default=None,
        description="let the judge vote on each step of an environment too; not set: where its model is one that votes",
    )
    trusted_envs: tuple[str, ...] = Field(
        default=(), description="environments, by the NAME of their key, whose text may become a hint"
    )
    reader: ReaderSection = Field(default_factory=ReaderSection)
    llm: LlmJudgeSection = Field(default_factory=LlmJudgeSection)
    models: JudgeModelsSection = Field(default_factory=JudgeModelsSection)
    classifier: ClassifierSection = Field(default_factory=ClassifierSection)
    options: Options = Field(default_factory=dict, repr=False, description="free table handed to a custom judge")
