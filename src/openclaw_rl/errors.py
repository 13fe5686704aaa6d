"""What can go wrong, drawn as a tree.

    OpenClawError
    ├── InvalidValue          a noun that cannot be built (also a ValueError)
    ├── ConfigError           a setting that cannot be read
    ├── PluginError           a name that leads nowhere, or to the wrong shape
    │   └── MissingExtra      an optional package is not installed
    ├── LedgerError           the ledger cannot be opened or written
    │   ├── LedgerDamaged     the file is not a healthy ledger
    │   ├── LedgerNewer       written by a later release
    │   ├── LedgerHeld        another process is this writer already
    │   ├── LedgerDown        no room, no right or no disk: it goes on once that is there again
    │   ├── AlreadyInLedger   such a row is written once, and is written
    │   ├── DeletedMeanwhile  what was to be written is of a session that was deleted
    │   └── NotInLedger       no such turn, session, step or version
    ├── RequestError          the caller's fault: a 4xx, never retried by us
    │   ├── ContextOverflow   prompt and reply do not fit the model
    │   ├── NotAllowed        no key, or a key without this right
    │   └── TooMany           a limit of this key or of the server
    ├── BackendError          a policy or trainer failed
    │   ├── BackendDown       it is restarting: hold the request or come back
    │   │   └── BackendGone   it cannot be started: refuse the request at once
    │   ├── FatalRequest      the backend died of this request: it is not tried again
    │   └── ModelRefused      these weights cannot be served, with the numbers
    ├── JudgeUnavailable      no vote could be had; the outcome waits
    ├── EnvFailed             an environment failed for a reason that is not the policy's
    │   ├── TaskRefused       a task that its audit does not admit: no other try changes that
    │   └── NoSandbox         a program that nobody has read cannot be run apart from this machine
    ├── NothingToPlay         no task of an environment may train: what plays it ends
    └── ImportRefused         a record of an import is not readable

An error says what, where and what to do: ``str(error)`` is fit to show to a person.
"""

from __future__ import annotations


class OpenClawError(Exception):
    """The root. ``remedy`` is one sentence that says what to do, or None."""

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


class InvalidValue(OpenClawError, ValueError):
    """A noun that cannot be built. ``field`` names the part that is wrong."""

    def __init__(self, field: str, what: str, *, remedy: str | None = None) -> None:
        super().__init__(f"{field}: {what}", remedy=remedy)
        self.field = field


class ConfigError(OpenClawError):
    """A setting that cannot be read."""


class PluginError(OpenClawError):
    """A name that leads nowhere, or to a thing of the wrong shape."""


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
    """Another process is this writer already."""


class LedgerDown(LedgerError):
    """No room, no right or no disk; it goes on once that is there again. ``why`` names no path, for callers."""

    def __init__(self, what: str, *, why: str, remedy: str | None = None) -> None:
        super().__init__(what, remedy=remedy)
        self.why = why


class AlreadyInLedger(LedgerError):
    """A row that is written once is there already; nothing was changed."""


class DeletedMeanwhile(LedgerError):
    """What was to be written is of a session that was deleted; nothing was written."""


class NotInLedger(LedgerError):
    """No such turn, session, step or version."""


class RequestError(OpenClawError):
    """The caller's fault. ``status`` is the HTTP status, ``field`` the path of the field at fault."""

    status = 400

    def __init__(
        self, what: str, *, field: str | None = None, remedy: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.field = field
        if status is not None:
            self.status = status


class ContextOverflow(RequestError):
    """Prompt and reply do not fit. Clients look for these very words to start their compaction."""

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
    """The backend cannot be started; it is tried again now and then, so nobody is held until it comes back."""


class FatalRequest(BackendError):
    """The backend died while it worked on this request, and died again when it was asked once more."""


class ModelRefused(BackendError):
    """These weights cannot be served: they cannot chat, do not fit, or are incomplete."""


class JudgeUnavailable(OpenClawError):
    """No vote could be had; the outcome stays on the work list."""


class EnvFailed(OpenClawError):
    """An environment failed for a reason that is not the policy's: the episode is in no statistic and never trains."""


class TaskRefused(EnvFailed):
    """A task that cannot be played as it is: its audit does not admit it, or no program can be given it."""


class NothingToPlay(OpenClawError):
    """No task of an environment may train, so that waiting changes nothing: what plays it ends with this error."""


class NoSandbox(EnvFailed):
    """A program that nobody has read cannot be run apart from this machine, so it is not run."""


class ImportRefused(OpenClawError):
    """A record of an import is not readable; the message names file and line."""
