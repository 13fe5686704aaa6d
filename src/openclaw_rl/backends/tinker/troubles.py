"""What the service answers when it does not do as it was asked, in our words. A key is in none of them."""

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

# The service's own SDK: which releases of it we work with, and what we need of them.

log = logging.getLogger(__name__)

OLDEST: Final = (0, 25)
"""the first release that speaks today's protocol"""
NEWEST: Final = (0, 36)
"""the newest one that this release was tried with"""
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
    """The package `tinker`; raises MissingExtra without it and ModelRefused for a release we cannot work with."""
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
    """The release of the SDK that is installed; empty where there is none."""
    try:
        return importlib.metadata.version("tinker")
    except importlib.metadata.PackageNotFoundError:
        return ""


def fault_of(version: str, sdk: Any) -> str | None:
    """What keeps us from working with an SDK; None where nothing does."""
    if _numbers(version) < OLDEST:
        return f"tinker {version} is refused: it speaks an older protocol than {_text(OLDEST)}"
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
"""words with which the service refuses a release of its SDK (400)"""
_JSON_ALONE: Final = "supports as proto"
"""words with which the SDK refuses a server of the protocol before 0.25"""
_OTHER_SDK: Final = "install the SDK that the server was made for, or a newer server: docs/tinker.md names them"
_UNPAID_REMEDY: Final = "add credit to the account; it goes on by itself then"
_OF_LATE: Final = 10.0
"""seconds for which a warning stands: the SDK tries again every 5"""
_BILLING: Final = "billing status"
"""words of the SDK's own warning that it waits because of the account"""


class SessionLost(BackendDown):
    """The service does not know this session, or what was made in it, any more: a new one is opened."""


class ServiceFailed(BackendDown):
    """A request was taken, and failed for a reason that the service does not put down to it."""


def translated(error: BaseException, doing: str, *, key: str | None) -> OpenClawError:
    """The error to raise in place of one of the SDK's. ``doing`` is what was tried: "sampling a reply"."""
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
        return SessionLost(f"the service has lost it: {what}")
    if status in _AGAIN or (status or 0) >= 500 or _is_connection(error):
        return BackendDown(f"the service does not answer for now: {what}", retry_after=30.0 if status == 429 else 5.0)
    if status is not None or _category(error) == "user":
        return RequestError(f"the service refused the request: {what}", status=400)
    if _category(error) is not None:
        return ServiceFailed(f"the service failed: {what}")
    if isinstance(error, AssertionError) or _JSON_ALONE in words:
        return other_protocol(what)
    if isinstance(error, _CHANGED):
        return ModelRefused(f"the SDK does not do as it did: {what}", remedy="see the releases in docs/tinker.md")
    return BackendError(what)


def other_protocol(what: str) -> ModelRefused:
    """The server speaks another protocol than the SDK that is installed."""
    return ModelRefused(
        f"the server does not answer as tinker {installed_version()} expects: {what}", remedy=_OTHER_SDK
    )


def unpaid(what: str) -> BackendGone:
    """The account cannot pay."""
    return BackendGone(f"the service wants to be paid: {what}", remedy=_UNPAID_REMEDY)


def too_slow(doing: str, seconds: float) -> BackendDown:
    """Nothing came back in time."""
    return BackendDown(
        f"the service does not answer for now: {doing}: nothing came within {seconds:g} s",
        remedy="see that it is up; a server of another protocol than the SDK's may be silent too (docs/tinker.md)",
    )


def redacted(text: str, key: str | None) -> str:
    """A text without the key."""
    return text.replace(key, "(the key)") if key else text


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error; None where there is none."""
    for each in _causes(error):
        status = getattr(each, "status_code", None)
        if isinstance(status, int):
            return status
        if type(each).__name__ == "RetryableException":  # the SDK's word for a 410 on what it waited for
            return 410
    return None


def _is_connection(error: BaseException) -> bool:
    names = {type(each).__name__ for each in _causes(error)}
    return bool(names & {"APIConnectionError", "APITimeoutError"}) or isinstance(error, (ConnectionError, TimeoutError))


def _category(error: BaseException) -> str | None:
    """Whose fault a request that was taken and then failed was: user, server or unknown; None for other errors."""
    category = getattr(error, "category", None)
    return None if category is None else str(getattr(category, "value", category)).lower()


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


class BillingNotices(logging.Handler):
    """Hears from the SDK's log that it waits because of the account: it would do so for an hour before it says so."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._heard: tuple[float, str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is said of billing."""
        text = record.getMessage()
        if _BILLING in text:
            self._heard = time.monotonic(), text

    def take(self) -> str | None:
        """What was said of late and not taken yet; None where nothing was."""
        heard, self._heard = self._heard, None
        return heard[1] if heard is not None and time.monotonic() - heard[0] < _OF_LATE else None

    def listen(self) -> None:
        """Hear from now on."""
        logging.getLogger("tinker").addHandler(self)

    def close(self) -> None:
        """Hear no more."""
        logging.getLogger("tinker").removeHandler(self)
        super().close()
