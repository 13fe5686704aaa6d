"""Response models for the API description: the fields that a client can rely on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from openclaw_rl.serve.control import ControlWord
from openclaw_rl.types import NoteKind, NoteState

Count = Annotated[int, Field(ge=0)]


class ResponseModel(BaseModel):
    """A response: the fields that a client can rely on; it may have more."""

    model_config = ConfigDict(extra="allow")


class ChatChoice(ResponseModel):
    index: Count
    message: dict[str, Any]
    finish_reason: str


class ChatUsage(ResponseModel):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class ChatCompletion(ResponseModel):
    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    system_fingerprint: str = ""
    choices: Annotated[list[ChatChoice], Field(min_length=1)]
    usage: ChatUsage
    turns: list[str] = []


class ResponseObject(ResponseModel):
    id: str
    object: Literal["response"]
    status: str
    output: list[Any]
    model: str


class MessageObject(ResponseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[Any]
    stop_reason: str
    usage: dict[str, Any]


class TokenCount(ResponseModel):
    input_tokens: Count


class FeedbackTaken(ResponseModel):
    object: Literal["feedback"]
    turn: str
    score: float | None = None


class SessionPaid(ResponseModel):
    object: Literal["session.reward"]
    session: str
    score: float | None = None
    failed: str | None = None


class SessionEnded(ResponseModel):
    object: Literal["session.ended"]
    session: str


class SessionDeleted(ResponseModel):
    object: Literal["session.deleted"]
    session: str
    user: str
    turns: Count
    notes: Count
    trained: Count = Field(description="turns that training steps had used")
    versions: list[Count] = Field(description="versions trained on this session; deletion does not change weights")
    message: str


class NoteObject(ResponseModel):
    object: Literal["note"]
    number: Count
    user: str
    kind: NoteKind
    text: str
    put: str = Field(description="the note's wording in a prompt")
    state: NoteState
    replaced_by: Count | None = None
    turn: str | None = None
    at: float


class NoteList(ResponseModel):
    object: Literal["list"]
    enabled: bool
    data: list[NoteObject]


class ControlTaken(ResponseModel):
    object: Literal["control"]
    command: ControlWord
    request: Count


class TokenObject(ResponseModel):
    token: Count
    text: str
    logprob: float


class TurnTokens(ResponseModel):
    object: Literal["turn.tokens"]
    turn: str
    version: Count
    prompt_tokens: Count
    reply_tokens: Count
    reply: list[TokenObject]


class ModelEntry(ResponseModel):
    id: str
    object: Literal["model"]
    version: Count = 0
    context_length: Count = 0


class ModelList(ResponseModel):
    object: Literal["list"]
    data: list[ModelEntry]


class HealthReport(ResponseModel):
    """The process's health."""


class ErrorDetail(ResponseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(ResponseModel):
    error: ErrorDetail


class MessagesErrorDetail(ResponseModel):
    type: str
    message: str


class MessagesError(ResponseModel):
    type: Literal["error"]
    error: MessagesErrorDetail


class OllamaReply(ResponseModel):
    model: str
    created_at: str
    done: Literal[True]
    done_reason: str
    eval_count: Count = 0
    turn: str = Field(default="", description="the turn's id, for /v1/feedback")


class OllamaChatReply(OllamaReply):
    message: dict[str, Any]


class OllamaGenerateReply(OllamaReply):
    response: str


class OllamaModel(ResponseModel):
    name: str
    model: str
    modified_at: str
    digest: str


class OllamaModels(ResponseModel):
    models: list[OllamaModel]


class OllamaModelDetails(ResponseModel):
    capabilities: list[str]
    model_info: dict[str, Any]


class OllamaVersion(ResponseModel):
    version: str


class OllamaError(ResponseModel):
    error: str
