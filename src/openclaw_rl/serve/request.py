"""What every wire format parses a request into, and what they are all rendered from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from openclaw_rl.formats.parts import Part, Text
from openclaw_rl.ports import Piece
from openclaw_rl.serve.api_errors import ApiError
from openclaw_rl.serve.limits import RequestLimits
from openclaw_rl.types import Feedback, Json, Kind, Prompt, PromptNote, Sampling, SessionReward, Turn


class TurnLedger(Protocol):
    """What serving needs of the ledger. Every method may be called from any thread."""

    def add_turn(self, turn: Turn) -> None: ...

    def add_feedback(self, feedback: Feedback) -> None: ...

    def add_ending(self, session: str, user: str) -> None: ...

    def add_reward(self, reward: SessionReward) -> bool: ...

    def turn(self, turn_id: str) -> Turn: ...

    def has_session(self, session: str, user: str) -> bool: ...

    def add_optout(self, session: str, user: str) -> None: ...

    def opted_out(self, session: str, user: str) -> bool: ...

    def latest_turns(self, user: str, *, session: str | None, limit: int) -> Sequence[Turn]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request, whatever its format. ``echo`` is what the format repeats in its response.

    ``schema_at`` is where it asks for a JSON schema; ``strict`` says that the reply must follow it. ``noted`` is what
    is put into its prompt on the way to the model.
    """

    prompt: Prompt
    sampling: Sampling
    model: str
    stream: bool = False
    n: int = 1
    logprobs: bool = False
    include_usage: bool = False
    count_prompt: bool = False
    session: str | None = None
    guessed_session: str | None = None
    after: str | None = None
    schema_at: str | None = None
    strict: bool = False
    noted: PromptNote | None = None
    echo: Mapping[str, Json] = field(default_factory=dict)

    @property
    def sent(self) -> Prompt:
        """The prompt as it goes to the model."""
        return self.prompt if self.noted is None else self.prompt.hinted(self.noted.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, and what the headers say about the turn."""

    user: str
    session: str | None = None
    group: str | None = None
    client: str = ""
    declared: Kind | None = None
    done: bool = False
    trainable: bool = True
    stored: bool = True
    notes: bool = True


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """The first token is on its way. ``prompt_tokens`` is None unless it was requested.

    ``unenforced`` names the field whose form the backend can only try to keep to.
    """

    turn: str
    version: int
    prompt_tokens: int | None
    unenforced: str | None = None


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """More of the reply, and the tokens behind it if log-probs were requested."""

    parts: Sequence[Part]
    pieces: Sequence[Piece] = ()


@dataclass(frozen=True, slots=True)
class ReplyFinished:
    """The turn, already kept. ``stop`` is the stop string that ended it, if one did."""

    turn: Turn
    pieces: Sequence[Piece] = ()
    stop: str | None = None


class Outright(Protocol):
    """Takes what a person says outright of a reply, in place of the policy."""

    def without(self, request: GenerationRequest) -> GenerationRequest: ...

    async def note(self, request: GenerationRequest, caller: Caller) -> ReplyFinished | None: ...


Event: TypeAlias = ReplyStarted | ReplyDelta | ReplyFinished


def reply_events(finished: ReplyFinished) -> Iterator[Event]:
    """A text that is there at once as the events of a reply."""
    completion = finished.turn.completion
    yield ReplyStarted(finished.turn.id, completion.version, len(completion.prompt_tokens))
    yield ReplyDelta((Text(completion.reply.content),))
    yield finished


class PutsNotes(Protocol):
    """Knows what is to be put into a user's prompts."""

    async def note_for(self, user: str, prompt: Prompt) -> PromptNote | None: ...


class Renderer(Protocol):
    """Turns the events of one streamed response into bytes. ``choice`` is the number of the reply."""

    def event(self, choice: int, event: Event) -> bytes: ...

    def close(self) -> bytes: ...

    def error(self, error: ApiError) -> bytes: ...


class Wire(Protocol):
    """A wire format: parses a body, renders a reply, a stream or an error."""

    name: str

    def parse(self, body: Mapping[str, Json], limits: RequestLimits) -> GenerationRequest: ...

    def plain(self, request: GenerationRequest, answers: Sequence[ReplyFinished]) -> Json: ...

    def stream(self, request: GenerationRequest, *, turn: str, created: float) -> Renderer: ...

    def error(self, error: ApiError) -> Json: ...
