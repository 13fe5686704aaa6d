"""What a caller gets when something goes wrong: a status and words, never a traceback."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from openclaw_rl.errors import (
    BackendDown,
    BackendError,
    ContextOverflow,
    FatalRequest,
    InvalidValue,
    LedgerDown,
    LedgerError,
    NotInLedger,
    RequestError,
    TooMany,
)
from openclaw_rl.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """A failure as a caller sees it; each wire format gives it its own shape."""

    status: int
    message: str
    field: str | None = None
    code: str | None = None
    retry_after: float | None = None
    overflow: tuple[int, int] | None = None
    """tokens needed and tokens that fit, where that was the trouble"""
    again: bool = True
    """False: a client must not retry the same request automatically"""


def api_error_of(error: Exception) -> ApiError:
    """What a caller gets for an exception; one that nobody foresaw shows nothing of itself."""
    match error:
        case ContextOverflow():
            numbers = (error.asked, error.limit)
            code = "context_length_exceeded"
            return ApiError(status=400, message=str(error), field=error.field, code=code, overflow=numbers)
        case TooMany():
            return ApiError(status=429, message=str(error), code="rate_limit_exceeded", retry_after=error.retry_after)
        case RequestError():
            return ApiError(status=error.status, message=str(error), field=error.field, code=_code(error))
        case InvalidValue():
            return ApiError(status=400, message=str(error), field=error.field)
        case NotInLedger():
            return ApiError(status=404, message=str(error), code=_MISSING)
        case LedgerDown():
            what = f"the server's ledger cannot be used now: {error.why}; {error.remedy}"
            return ApiError(status=503, message=what, code="ledger_down", retry_after=_LEDGER_AGAIN)
        case LedgerError():
            return ApiError(
                status=503, message="the server's ledger cannot be used; its log says why", code="ledger_error"
            )
        case BackendDown():
            return ApiError(status=503, message=str(error), code="backend_down", retry_after=error.retry_after)
        case FatalRequest():
            return ApiError(status=500, message=str(error), code="engine_died", again=False)
        case BackendError():
            return ApiError(
                status=502, message="the model's backend failed; the server's log says why", code="backend_error"
            )
    return ApiError(status=500, message="the server failed; its log says why", code="internal_error")


_LEDGER_AGAIN = 5.0
_MISSING = "not_found"
_CODES = {401: "invalid_api_key", 404: _MISSING, 413: "request_too_large", 415: "unsupported_media_type"}


def _code(error: RequestError) -> str | None:
    return "model_not_found" if error.status == 404 and error.field == "model" else _CODES.get(error.status)


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def openai_error(api_error: ApiError) -> Json:
    """The shape of chat completions, responses and our own endpoints."""
    kind = _OPENAI_TYPES.get(api_error.status, "invalid_request_error" if api_error.status < 500 else "server_error")
    param = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", api_error.field) if api_error.field else None
    return {"error": {"message": api_error.message, "type": kind, "param": param, "code": api_error.code}}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(api_error: ApiError) -> Json:
    """The shape of messages."""
    kind = _ANTHROPIC_TYPES.get(api_error.status, "invalid_request_error" if api_error.status < 500 else "api_error")
    message = api_error.message
    if api_error.overflow:
        needed, limit = api_error.overflow
        message = f"prompt is too long: {needed} tokens > {limit} maximum; {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def reason(status: int) -> str:
    return HTTPStatus(status).phrase
