"""What every wire format parses a request into, and what they are all rendered from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from openclaw_rl.errors import InvalidValue, RequestError
from openclaw_rl.formats.parts import Part
from openclaw_rl.formats.variables import check_variables
from openclaw_rl.ports import Piece
from openclaw_rl.serve.api_errors import ApiError
from openclaw_rl.serve.fields import At
from openclaw_rl.serve.limits import RequestLimits
from openclaw_rl.types import Feedback, Json, Kind, Message, Prompt, Sampling, Tool, Turn, Version


class TurnLedger(Protocol):
    """What serving needs of the ledger. Every method may be called from any thread."""

    def add_turn(self, turn: Turn) -> None: ...

    def add_feedback(self, feedback: Feedback) -> None: ...

    def add_ending(self, session: str, user: str) -> None: ...

    def turn(self, turn_id: str) -> Turn: ...

    def has_session(self, session: str, user: str) -> bool: ...

    def add_optout(self, session: str, user: str) -> None: ...

    def opted_out(self, session: str, user: str) -> bool: ...

    def live_version(self) -> Version | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request, whatever its format. ``echo`` is what the format repeats in its response.

    ``schema_at`` is where it asks for a JSON schema; ``strict`` says that the reply must follow it.
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
    echo: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, and what the headers said about the turn."""

    user: str
    session: str | None = None
    group: str | None = None
    client: str = ""
    declared: Kind | None = None
    done: bool = False
    trainable: bool = True
    stored: bool = True


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


Event: TypeAlias = ReplyStarted | ReplyDelta | ReplyFinished


class Renderer(Protocol):
    """Turns the events of one streamed response into bytes. ``choice`` is the number of the reply."""

    def event(self, choice: int, event: Event) -> bytes: ...

    def close(self) -> bytes: ...

    def fault(self, fault: ApiError) -> bytes: ...


class Wire(Protocol):
    """A wire format: parses a body, renders a reply, a stream or a fault."""

    name: str

    def parse(self, body: At, limits: RequestLimits) -> GenerationRequest: ...

    def plain(self, request: GenerationRequest, answers: Sequence[ReplyFinished]) -> Json: ...

    def stream(self, request: GenerationRequest, *, turn: str, created: float) -> Renderer: ...

    def fault(self, fault: ApiError) -> Json: ...


def build_sampling(defaults: Sampling, names: Mapping[str, str], **values: Json) -> Sampling:
    """Sampling from what was given (None: the default). ``names`` maps a field to what this format calls it."""
    given = {key: value for key, value in values.items() if value is not None and value != getattr(defaults, key)}
    if not given:
        return defaults
    try:
        return replace(defaults, **given)
    except InvalidValue as error:
        field_name = names.get(error.field, error.field)
        what = error.what.split(": ", 1)[-1]
        raise RequestError(f"{field_name}: {what}", field=field_name) from error


def build_tool(name: At, description: At, parameters: At) -> Tool:
    return Tool(name=name.name(), description=description.text() or "", parameters=parameters.table())


def chosen(choice: str, name: At, tools: Sequence[Tool]) -> str:
    """``name:NAME`` for a named tool, which must be among the tools."""
    if choice != "named":
        return choice
    wanted = name.name()
    if all(tool.name != wanted for tool in tools):
        known = ", ".join(tool.name for tool in tools) or "none"
        raise name.fault(f"no tool is called {wanted!r}; known: {known}")
    return f"name:{wanted}"


def variables(at: At) -> dict[str, Json]:
    """What the request says to the chat template: variables that a caller may set, and no others."""
    given = at.table()
    check_variables(given, field=at.path)
    return {name: value for name, value in given.items() if value is not None}


def image(url: At) -> str:
    """A data URL; the server fetches nothing."""
    text = url.name()
    if not text.startswith("data:"):
        raise url.fault("only data: URLs are taken; send the image itself, base64 encoded")
    return text


def need_messages(messages: Sequence[Message], at: At) -> tuple[Message, ...]:
    if not messages:
        raise at.fault("must hold at least one message")
    return tuple(messages)
