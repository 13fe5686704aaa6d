"""The ports: what a loop may call of a policy, a trainer, a judge, an environment.

Seven kinds are loaded by `plugins`: Policy, Trainer, Judge, Env, Rollout, Generate, Loss.
A ``Loop`` is what `app` runs. Loops are handed these ports and never import what stands behind them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from openclaw_rl.types import (
    Completion,
    Feedback,
    Kind,
    Logprobs,
    Message,
    Outcome,
    Prompt,
    Sample,
    Sampling,
    Tokens,
    Turn,
    Verdict,
    Version,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A token that could have been sampled at a position, with its raw log-prob."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One sampled token: its own text and its raw log-prob (temperature 1), as API clients expect them."""

    token: int
    text: str
    logprob: float
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The next bit of a reply as it streams: raw text as the model wrote it, and the tokens it came from.

    Text is held back while it may be the beginning of a stop string or half a character, so ``pieces`` may run ahead.
    """

    text: str
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probs of given reply tokens `[R]` under one version, and the k best tokens at each position `[R][k]`."""

    logprobs: Logprobs
    top_tokens: tuple[Tokens, ...] = ()
    top_logprobs: tuple[Logprobs, ...] = ()


Stream: TypeAlias = AsyncIterator[Delta | Completion]
"""Any number of `Delta`, then exactly one `Completion`, whose reply is the raw text as one assistant message."""


async def whole_reply(stream: Stream) -> Completion:
    """The completion that a stream ends with."""
    done: Completion | None = None
    async for item in stream:
        if isinstance(item, Completion):
            done = item
    assert done is not None, "a stream ends with its completion"
    return done


@runtime_checkable
class Policy(Protocol):
    """Weights that answer. All methods may be called at once from one event loop."""

    name: str
    """the model id that clients see"""
    base: str
    """the identity of the base weights, written into each version"""
    context: int
    """the most tokens that a prompt and its reply may have together"""
    tool_format: str
    """how this model writes tool calls: hermes, llama, pythonic or none"""

    @property
    def live(self) -> int:
        """The number of the version that new requests take."""
        ...

    async def start(self) -> None:
        """Make ready to answer; raises ModelRefused with the numbers and the remedy."""
        ...

    async def stop(self) -> None:
        """End what runs, give memory back. Safe to call twice."""
        ...

    def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        """Stream a reply of ``version`` (None: the live one, 0: the base model). Closing it early stops generation.

        Raises ContextOverflow for a request that can never fit, BackendDown while it cannot answer for now.
        """
        ...

    async def encode(self, prompt: Prompt) -> Tokens:
        """The prompt's ids through the chat template, ready for a reply."""
        ...

    async def tokenize(self, text: str) -> Tokens:
        """The ids of a reply's bare text followed by the end-of-turn token (for imports only)."""
        ...

    async def decode(self, tokens: Tokens) -> str:
        """The text of ids, special tokens kept."""
        ...

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        """Log-probs of a given reply after given prompt ids; ``version`` 0 is the base model."""
        ...

    async def load(self, version: Version) -> None:
        """Load ``version`` beside the running one and make it live. Requests in flight keep theirs."""
        ...


@runtime_checkable
class SupportsVersions(Protocol):
    """A policy that answers for any version by its number, not only for the live one."""

    def know(self, version: Version) -> None:
        """Make ``version`` known without loading it: it is loaded with the first request for it."""
        ...


@runtime_checkable
class SupportsCandidates(Protocol):
    """A policy that can hold a candidate beside the live version, so that the gate can examine it."""

    async def admit(self, version: Version) -> None:
        """Load ``version`` and keep it, without making it live; its requests give way to users'.

        Raises ModelRefused when its weights are damaged, another BackendError when it cannot be had for now.
        """
        ...

    async def dismiss(self, number: int) -> None:
        """Let an admitted version go. Safe to call for one that is not there."""
        ...


@runtime_checkable
class SupportsScopes(Protocol):
    """A policy with a prefix cache that can be kept apart by scope."""

    def scoped(self, scope: str) -> Policy:
        """The same policy for one scope: no prefix of another scope is reused, so its speed reveals nothing."""
        ...


@runtime_checkable
class ReportsHealth(Protocol):
    """A policy whose engine has metrics."""

    @property
    def health(self) -> Mapping[str, Any]:
        """The state of the engine; its numbers are shown at /metrics."""
        ...


@runtime_checkable
class ReportsOutage(Protocol):
    """A policy that can be down for good."""

    @property
    def outage(self) -> str | None:
        """Why it cannot answer, and will not soon; None while it answers or restarts."""
        ...


@runtime_checkable
class ReportsRunner(Protocol):
    """A policy or a trainer that runs different models in different ways."""

    @property
    def runner(self) -> str | None:
        """How it runs this one, in words; None where that is not known yet."""
        ...


Decision: TypeAlias = Literal["promote", "refuse", "hold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    """What the gate decided on a candidate, measured against the version that was live.

    ``evidence`` is plain JSON: each check with its numbers, and examples. A held candidate is examined again later.
    """

    version: int
    against: int
    decision: Decision
    reason: str
    evidence: Mapping[str, Any]
    seconds: float = 0.0
    at: float = field(default_factory=time.time)


@runtime_checkable
class Gate(Protocol):
    """Decides whether a candidate may be served in place of the live version."""

    async def decide(self, candidate: Version, live: Version) -> GateDecision: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Served replies got worse since ``version`` was promoted: go back ``to`` the version before it, and why."""

    version: int
    to: int
    reason: str
    evidence: Mapping[str, Any]


class LiveMonitor(Protocol):
    """Tests whether users' evidence got worse since a promotion; called from a thread."""

    def check(self) -> Regression | None: ...


Ability: TypeAlias = Literal["opening", "tool_choice", "json_schema"]


@runtime_checkable
class SupportsConstraints(Protocol):
    """A policy that can constrain a reply; one that does not declare it gets no such request.

    opening: the prompt's tokens end with `Prompt.opening` and the reply goes on from there. tool_choice: it enforces
    "required" and a named tool. json_schema: it enforces `Sampling.json_schema`.
    """

    abilities: frozenset[Ability]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step gave. ``adapter`` is the finished directory, None when the step was ``skipped`` for a reason.

    ``dropped`` are turns of the batch that can never train, each with the reason: nothing of them is in the weights.
    """

    adapter: str | None
    metrics: Mapping[str, float]
    seconds: float
    skipped: str | None = None
    dropped: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Trainer(Protocol):
    """Turns a batch into the next version's weights. Runs where it does not slow the policy down."""

    async def start(self) -> None:
        """Make ready; raises ModelRefused with the memory plan when it cannot fit."""
        ...

    async def stop(self) -> None:
        """Give everything back. Safe to call twice."""
        ...

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        """One step from ``parent``'s weights and optimiser state into the directory ``target``.

        The directory appears whole or not at all. Called again with the same arguments it gives the same weights.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a judge may see of one turn."""

    turn: Turn
    outcome: Outcome
    feedback: tuple[Feedback, ...] = ()


@runtime_checkable
class Judge(Protocol):
    """Gives a verdict; abstains with ``score`` None; raises JudgeUnavailable when it should be tried again later."""

    name: str

    async def judge(self, case: Case) -> Verdict: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a request stands: main or side, and the main turn whose reply it directly follows, None without one."""

    kind: Kind
    before: str | None


class ConversationReader(Protocol):
    """What can be told of a conversation by its text alone."""

    def words(self, text: str) -> str:
        """A user's text without the envelopes that clients put around it."""
        ...

    def place(self, request: Turn, known: Sequence[Turn]) -> Placement:
        """Where ``request`` stands among turns that are known, oldest first; its own reply does not count."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """What a classifier makes of an exchange, as probabilities.

    ``positive``: that the user was served well rather than badly. ``neutral``: that nothing is said of it.
    """

    positive: float
    neutral: float


@runtime_checkable
class HostedModel(Protocol):
    """A judge's model in a process of its own."""

    name: str

    @property
    def health(self) -> Mapping[str, Any]:
        """Its state, its process, the memory that it takes."""
        ...

    async def start(self) -> None:
        """Make ready; raises ModelRefused with the numbers and the remedy."""
        ...

    async def stop(self) -> None:
        """End the process. Safe to call twice."""
        ...


@runtime_checkable
class Classifier(HostedModel, Protocol):
    """A sequence-classification model that reads a request, the reply to it and what came after."""

    async def classify(self, *, request: str, reply: str, after: str) -> Classification:
        """Raises BackendDown while it cannot answer for now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What an environment returns after a reply: the next messages, a reward in -1 .. 1 or None, whether it is over."""

    messages: tuple[Message, ...]
    reward: float | None = None
    done: bool = False
    info: Mapping[str, Any] | None = None


@runtime_checkable
class Env(Protocol):
    """An environment: a client whose reply is the next state."""

    name: str

    def tasks(self) -> Sequence[str]:
        """The ids of its tasks."""
        ...

    async def reset(self, task: str, *, seed: int) -> Prompt:
        """Begin ``task``: the first prompt, tools included."""
        ...

    async def step(self, reply: Message) -> Observation:
        """Act on the policy's reply."""
        ...

    async def close(self) -> None:
        """End it and clean up. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReply:
    """What an API client gets back: the message and the id of the turn behind it."""

    turn: str
    message: Message
    version: int


class ChatClient(Protocol):
    """The public API as a client sees it: how rollouts talk to the policy."""

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> TurnReply: ...

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None: ...


class Rollout(Protocol):
    """Runs one episode of a task: ``async (env, chat, *, task, seed, group, max_steps) -> total reward``."""

    def __call__(
        self, env: Env, chat: ChatClient, *, task: str, seed: int, group: str | None, max_steps: int
    ) -> Awaitable[float]: ...


class Generate(Protocol):
    """Stands between the API and the policy: ``(policy, prompt, sampling, *, version) -> Stream``."""

    def __call__(self, policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream: ...


class Loss(Protocol):
    """Tensors in, a scalar and plain metrics out. The inputs are documented in `openclaw_rl.losses`.

    One that names a second argument ``config`` is called with a dict beside them: the settings of the loss, and
    whatever the table ``train.loss.config`` holds. `ComputeLoss` is the other contract.
    """

    def __call__(self, inputs: Any, /) -> tuple[torch.Tensor, Mapping[str, float]]: ...


class ComputeLoss(Protocol):
    """A loss by the published contract: four tensors of one shape [1, N] and a dict in, a scalar out.

    `openclaw_rl.losses.published` says what each holds.
    """

    def __call__(
        self,
        policy_logits: torch.Tensor,
        reference_logits: torch.Tensor,
        rewards: torch.Tensor,
        advantages: torch.Tensor,
        config: dict[str, Any],
    ) -> torch.Tensor: ...


Score: TypeAlias = Callable[[Prompt, str, Sequence[Message]], "float | Awaitable[float | None] | None"]
"""A judge in one function: ``(prompt, reply, next_state) -> score``, sync or async; None abstains."""


class RewardModel(Protocol):
    """What a published ``get_reward_model(config)`` gives: the probability, 0 .. 1, that a reply was good.

    ``score`` may be async; a plain one is called from worker threads, several at once. It takes plain text.
    """

    def score(self, prompt: str, response: str, next_state: str) -> float | Awaitable[float]: ...


@runtime_checkable
class Loop(Protocol):
    """A bounded amount of work per ``tick``: how many items moved, 0 when idle."""

    name: str

    async def tick(self) -> int: ...
