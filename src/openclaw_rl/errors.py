"""The error tree.

    OpenClawError
    ├── InvalidValue          an invalid value: the object cannot be built (also a ValueError)
    ├── ConfigError           a setting that cannot be read
    ├── PluginError           a name that cannot be resolved, or resolves to an object with the wrong shape
    │   └── MissingExtra      an optional package is not installed
    ├── LedgerError           the ledger cannot be opened or written
    │   ├── LedgerDamaged     the file is not a healthy ledger
    │   ├── LedgerNewer       written by a later release
    │   ├── LedgerHeld        another process already has this writer's role
    │   ├── LedgerDown        the store is full, not writable or out of reach: writing continues once that is fixed
    │   ├── AlreadyInLedger   a row that is written once exists already
    │   ├── DeletedMeanwhile  the row belongs to a session that was deleted in the meantime
    │   └── NotInLedger       no such turn, session, step or version
    ├── RequestError          the caller's fault: a 4xx, never retried by us
    │   ├── ContextOverflow   prompt and reply do not fit the model
    │   ├── NotAllowed        no key, or a key without this right
    │   └── TooMany           a limit of this key or of the server
    ├── BackendError          a policy or trainer failed
    │   ├── BackendDown       it is restarting: hold the request or retry later
    │   │   └── BackendGone   it cannot be started: refuse the request at once
    │   ├── FatalRequest      the backend died of this request, which is not retried
    │   └── ModelRefused      these weights cannot be served, with the numbers
    ├── JudgeUnavailable      no vote is available; the outcome waits
    ├── EnvFailed             an environment failed for a reason that is not the policy's
    │   ├── TaskRefused       a task that its audit rejects: no retry changes that
    │   └── NoSandbox         an unreviewed program cannot be isolated from this machine
    ├── NothingToPlay         no task of an environment may train: its player ends
    └── ImportRefused         an import record is not readable

An error states its cause, its place and its remedy: ``str(error)`` can be shown to a user as it is.
"""

from __future__ import annotations


class OpenClawError(Exception):
    """The root. ``remedy`` is one sentence with the action to take, or None."""

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


class InvalidValue(OpenClawError, ValueError):
    """An object that cannot be built. ``field`` names the part that is wrong."""

    def __init__(self, field: str, what: str, *, remedy: str | None = None) -> None:
        super().__init__(f"{field}: {what}", remedy=remedy)
        self.field = field


class ConfigError(OpenClawError):
    """A setting that cannot be read."""


class PluginError(OpenClawError):
    """A name that cannot be resolved, or that resolves to an object with the wrong shape."""


class MissingExtra(PluginError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed",
            remedy=f"pip install 'openclaw-rl[{extra}]'",
        )


class LedgerError(OpenClawError):
    """The ledger cannot be opened or written."""


class LedgerDamaged(LedgerError):
    """The file is not a healthy ledger; nothing was changed."""


class LedgerNewer(LedgerError):
    """The file was written by a later release; nothing was changed."""


class LedgerHeld(LedgerError):
    """Another process already has this writer's role."""


class LedgerDown(LedgerError):
    """The store is full, not writable, or out of reach; writing continues once that is fixed.

    ``why`` is the cause without a path, fit for callers.
    """

    def __init__(self, what: str, *, why: str, remedy: str | None = None) -> None:
        super().__init__(what, remedy=remedy)
        self.why = why


class AlreadyInLedger(LedgerError):
    """A row that is written once exists already; nothing was changed."""


class DeletedMeanwhile(LedgerError):
    """The row belongs to a session that was deleted in the meantime; nothing was written."""


class NotInLedger(LedgerError):
    """No such turn, session, step or version."""


class RequestError(OpenClawError):
    """The caller's fault. ``status`` is the HTTP status, ``field`` the path to the wrong field."""

    status = 400

    def __init__(
        self, what: str, *, field: str | None = None, remedy: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.field = field
        if status is not None:
            self.status = status


class ContextOverflow(RequestError):
    """Prompt and reply do not fit. Clients match this exact wording to start their compaction."""

    def __init__(self, *, limit: int, asked: int) -> None:
        super().__init__(
            f"this model's maximum context length is {limit} tokens, but the request needs {asked}",
            field="messages",
            remedy="shorten the conversation or ask for fewer tokens",
        )
        self.limit = limit
        self.asked = asked


class NotAllowed(RequestError):
    """No key, or a key without this right."""

    status = 401


class TooMany(RequestError):
    """A limit of this key or of the server; ``retry_after`` is in seconds."""

    status = 429

    def __init__(self, what: str, *, retry_after: float = 1.0, remedy: str | None = None) -> None:
        super().__init__(what, remedy=remedy)
        self.retry_after = retry_after


class BackendError(OpenClawError):
    """A policy or trainer failed."""


class BackendDown(BackendError):
    """The backend is restarting or out of reach; ``retry_after`` is in seconds."""

    def __init__(self, what: str, *, retry_after: float = 5.0, remedy: str | None = None) -> None:
        super().__init__(what, remedy=remedy)
        self.retry_after = retry_after


class BackendGone(BackendDown):
    """The backend cannot be started; starts are retried at intervals, so requests are refused instead of held."""


class FatalRequest(BackendError):
    """The backend died while working on this request, and died again on its retry."""


class ModelRefused(BackendError):
    """These weights cannot be served: they cannot chat, do not fit, or are incomplete."""


class JudgeUnavailable(OpenClawError):
    """No vote is available; the outcome stays on the work list."""


class EnvFailed(OpenClawError):
    """An environment failed for a reason that is not the policy's.

    The episode enters no statistics and never trains.
    """


class TaskRefused(EnvFailed):
    """A task that cannot be played as it is: its audit rejects it, or no program can be started on it."""


class NothingToPlay(OpenClawError):
    """No task of an environment may train, so waiting changes nothing: its player ends with this error."""


class NoSandbox(EnvFailed):
    """An unreviewed program cannot be isolated from this machine, so it is not run."""


class ImportRefused(OpenClawError):
    """An import record is not readable; the message names file and line."""
