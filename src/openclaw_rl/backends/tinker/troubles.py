"""The translation from the service's failures to this package's errors. None of their texts contains the key."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import time
from collections.abc import Iterator
from typing import Any, Final

from openclaw_rl.errors import (
    BackendDown,
    BackendError,
    BackendGone,
    MissingExtra,
    ModelRefused,
    OpenClawError,
    RequestError,
)

# The service's own SDK: the supported releases, and the parts required from it.

log = logging.getLogger(__name__)

OLDEST: Final = (0, 25)
"""the first release with the current protocol"""
NEWEST: Final = (0, 36)
"""the newest release tested with this one"""
_UNTRIED: Final = (NEWEST[0], NEWEST[1] + 1)
_NEEDED: Final = {
    "ServiceClient": (
        "create_lora_training_client",
        "create_training_client_from_state_with_optimizer",
        "create_sampling_client",
        "get_server_capabilities",
    ),
    "TrainingClient": ("forward", "forward_backward", "optim_step", "save_state", "save_weights_for_sampler"),
    "SamplingClient": ("sample",),
    "types": ("AdamParams", "Datum", "ModelInput", "SamplingParams", "TensorData"),
}


def load_sdk() -> Any:
    """Return the package `tinker`; raise MissingExtra without it and ModelRefused for an unsupported release."""
    try:
        sdk = importlib.import_module("tinker")
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "tinker") from error
    version = installed_version()
    if fault := fault_of(version, sdk):
        raise ModelRefused(fault, remedy=f"pip install 'tinker>={_text(OLDEST)},<{_text(_UNTRIED)}'")
    if _numbers(version) > NEWEST:
        log.warning("tinker %s is newer than %s, the newest that was tried", version, _text(NEWEST))
    logging.getLogger("tinker").setLevel(logging.WARNING)  # below, it logs whole requests
    return sdk


def installed_version() -> str:
    """Return the installed SDK's release; empty if there is none."""
    try:
        return importlib.metadata.version("tinker")
    except importlib.metadata.PackageNotFoundError:
        return ""


def fault_of(version: str, sdk: Any) -> str | None:
    """Return the reason why an SDK cannot be used; None if it can."""
    if _numbers(version) < OLDEST:
        return f"tinker {version} is refused: it uses an older protocol than {_text(OLDEST)}"
    missing = [
        f"{owner}.{name}"
        for owner, names in _NEEDED.items()
        for name in names
        if not hasattr(getattr(sdk, owner, None), name)
    ]
    return f"tinker {version} is refused: it has no {', '.join(missing)}" if missing else None


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else (0, 0)


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


_AGAIN: Final = frozenset({408, 409, 429})
_LOST: Final = frozenset({404, 410})
_KEY: Final = frozenset({401, 403})
_CHANGED: Final = (TypeError, AttributeError, ImportError, NotImplementedError)
_LONGEST: Final = 300
_TOO_OLD: Final = "sdk version"
"""words with which the service refuses an SDK release (400)"""
_JSON_ALONE: Final = "supports as proto"
"""words with which the SDK refuses a server with the protocol before 0.25"""
_OTHER_SDK: Final = "install the SDK that the server was made for, or a newer server: docs/tinker.md names them"
_UNPAID_REMEDY: Final = "add credit to the account; it then continues by itself"
_OF_LATE: Final = 10.0
"""seconds for which a warning is valid: the SDK tries again every 5"""
_BILLING: Final = "billing status"
"""words in the SDK's own warning while it waits because of the account"""


class SessionLost(BackendDown):
    """The service has lost this session, or an object created in it: a new session is opened."""


class ServiceFailed(BackendDown):
    """The service accepted a request, then failed for a reason other than the request."""


def translated(error: BaseException, doing: str, *, key: str | None) -> OpenClawError:
    """Return the error to raise in place of the SDK's. ``doing`` is the action attempted: "sampling a reply"."""
    if isinstance(error, OpenClawError):
        return error
    status, words = status_of(error), redacted(_words(error), key)
    what = f"{doing}: {words}"
    if status == 402:
        return unpaid(what)
    if status == 400 and _TOO_OLD in words.lower():
        return ModelRefused(f"the service refuses tinker {installed_version()}: {what}", remedy="pip install -U tinker")
    if status in _KEY:
        return ModelRefused(f"the service refuses the key: {what}", remedy="correct TINKER_API_KEY")
    if status in _LOST:
        return SessionLost(f"the service no longer has it: {what}")
    if status in _AGAIN or (status or 0) >= 500 or _is_connection(error):
        return BackendDown(f"the service does not answer for now: {what}", retry_after=30.0 if status == 429 else 5.0)
    if status is not None or _category(error) == "user":
        return RequestError(f"the service refused the request: {what}", status=400)
    if _category(error) is not None:
        return ServiceFailed(f"the service failed: {what}")
    if isinstance(error, AssertionError) or _JSON_ALONE in words:
        return other_protocol(what)
    if isinstance(error, _CHANGED):
        return ModelRefused(f"the SDK has changed: {what}", remedy="see the releases in docs/tinker.md")
    return BackendError(what)


def other_protocol(what: str) -> ModelRefused:
    """Return the error for a server whose protocol differs from the installed SDK's."""
    return ModelRefused(
        f"the server does not answer as tinker {installed_version()} expects: {what}", remedy=_OTHER_SDK
    )


def unpaid(what: str) -> BackendGone:
    """Return the error for an account that cannot pay."""
    return BackendGone(f"the service requires payment: {what}", remedy=_UNPAID_REMEDY)


def too_slow(doing: str, seconds: float) -> BackendDown:
    """Return the error for a missing answer."""
    return BackendDown(
        f"the service does not answer for now: {doing}: no answer within {seconds:g} s",
        remedy="see that it is up; a server of another protocol than the SDK's may be silent too (docs/tinker.md)",
    )


def redacted(text: str, key: str | None) -> str:
    """Return the text without the key."""
    return text.replace(key, "(the key)") if key else text


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status behind an error; None if there is none."""
    for cause in _causes(error):
        status = getattr(cause, "status_code", None)
        if isinstance(status, int):
            return status
        if type(cause).__name__ == "RetryableException":  # the SDK's name for a 410 from a request that it awaits
            return 410
    return None


def _is_connection(error: BaseException) -> bool:
    names = {type(cause).__name__ for cause in _causes(error)}
    return bool(names & {"APIConnectionError", "APITimeoutError"}) or isinstance(error, (ConnectionError, TimeoutError))


def _category(error: BaseException) -> str | None:
    """Return the party at fault when an accepted request failed: user, server or unknown; None for other errors."""
    category = getattr(error, "category", None)
    return None if category is None else str(getattr(category, "value", category)).lower()


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


class BillingNotices(logging.Handler):
    """A log handler that detects the SDK waiting for payment; the SDK itself reports it only after an hour."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._heard: tuple[float, str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message about billing."""
        text = record.getMessage()
        if _BILLING in text:
            self._heard = time.monotonic(), text

    def take(self) -> str | None:
        """Return and clear the recent billing message; None if there is none."""
        notice, self._heard = self._heard, None
        return notice[1] if notice is not None and time.monotonic() - notice[0] < _OF_LATE else None

    def listen(self) -> None:
        """Start to watch the SDK's log."""
        logging.getLogger("tinker").addHandler(self)

    def close(self) -> None:
        """Stop watching the SDK's log."""
        logging.getLogger("tinker").removeHandler(self)
        super().close()
