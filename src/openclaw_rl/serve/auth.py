"""API access: keys and their users."""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from openclaw_rl.errors import NotAllowed, RequestError
from openclaw_rl.types import Json, Kind

OPEN_USER = "local"
"""the user for all requests if no keys are set"""

Headers = Mapping[str, str]


def headers_of(raw: Collection[tuple[bytes, bytes]], limit: int) -> dict[str, str]:
    """Return headers by lower-case name; raise RequestError if they exceed ``limit`` bytes."""
    if sum(len(name) + len(value) for name, value in raw) > limit:
        raise RequestError(f"the headers are larger than {limit} bytes", status=431)
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


class ApiKeys:
    """Maps an API key to its user, comparing in constant time.

    A user called ``env:NAME`` is an environment; only an entry in the keys can create one. ``own`` holds the keys for
    environments that this process runs: they admit those environments and do not make a key mandatory.
    """

    def __init__(self, keys: Mapping[str, str], own: Mapping[str, str]) -> None:
        self._keys = [(key.encode(), user) for key, user in {**keys, **own}.items()]
        self.open = not keys

    def user(self, headers: Headers) -> str:
        presented = _given_key(headers).encode("latin-1")
        match = None
        for key, user in self._keys:  # compare all keys, so that the time reveals nothing
            if hmac.compare_digest(key, presented):
                match = user
        if match is None and self.open:
            return OPEN_USER
        if match is None:
            what = "this key is not known" if presented else "a key is needed"
            raise NotAllowed(what, remedy="send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        return match


def _given_key(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip()


# A turn's metadata from headers and body: its session, main or side, trained or not.

_SESSION_HEADERS = (
    "x-session-id",  # this API's, and opencode's
    "x-session-affinity",  # OpenClaw: session id and epoch, which together name one conversation
    "session_id",  # OpenClaw, likewise
    "x-claude-code-session-id",
    "thread-id",  # Codex: a thread within a session
    "session-id",  # Codex
)
NOTES_HEADER = "x-openclaw-rl-notes"
"""off omits standing notes from a request's prompt; in a response, the numbers of the inserted notes"""
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")
_CLAUDE_SESSION = re.compile(r"session_([0-9A-Za-z-]{8,64})")
_LONGEST_CLIENT = 256
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHeaders:
    """One request's headers. ``train_session`` False excludes the session from training from now on."""

    session: str | None
    group: str | None
    client: str
    declared: Kind | None
    done: bool
    train: bool
    train_session: bool
    notes: bool


def read_headers(headers: Mapping[str, str]) -> TurnHeaders:
    """Parse the headers; raise RequestError for a malformed header. An absent header sets nothing."""
    train = headers.get("x-openclaw-rl-train", "on").strip().lower()
    if train not in ("on", "off", "off-session"):
        raise _header("x-openclaw-rl-train", "must be on, off or off-session")
    return TurnHeaders(
        session=_session(headers),
        group=_named(headers, "x-openclaw-rl-group") if headers.get("x-openclaw-rl-group", "").strip() else None,
        client=headers.get("user-agent", "").split(" (", 1)[0].strip()[:_LONGEST_CLIENT],
        declared=_declared(headers.get("x-turn-type", "").strip().lower()),
        done=_done(headers.get("x-session-done", "").strip().lower()),
        train=train == "on",
        train_session=train != "off-session",
        notes=_switch(headers, NOTES_HEADER),
    )


def _session(headers: Mapping[str, str]) -> str | None:
    """Return the first session name; if another header has the same name with an epoch (``NAME:3``), return that."""
    names = [_named(headers, name) for name in _SESSION_HEADERS if headers.get(name, "").strip()]
    if not names:
        return None
    return next((name for name in names if re.fullmatch(re.escape(names[0]) + r":\d{1,9}", name)), names[0])


def _named(headers: Mapping[str, str], name: str) -> str:
    return session_name(_utf8(headers[name].strip()), name)


def _utf8(value: str) -> str:
    """Decode a header's value as UTF-8 if it is valid, so that a name is equal in a header and in a path."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value


def session_name(text: str, where: str) -> str:
    """Check a session's or group's name: 1 to 256 characters without control characters."""
    if not _NAME.fullmatch(text):
        raise _header(where, "must be 1 to 256 characters without control characters")
    return text


def _declared(text: str) -> Kind | None:
    if text == "main":
        return "main"
    if text == "side":
        return "side"
    if text:
        raise _header("x-turn-type", "must be main or side")
    return None


def _switch(headers: Mapping[str, str], name: str) -> bool:
    text = headers.get(name, "on").strip().lower()
    if text not in ("on", "off"):
        raise _header(name, "must be on or off")
    return text == "on"


def _done(text: str) -> bool:
    if text not in _TRUE | _FALSE:
        raise _header("x-session-done", "must be true or false")
    return text in _TRUE


def _header(name: str, what: str) -> RequestError:
    return RequestError(f"{name}: {what}", field=name)


def guess_session(user_id: Json, *named: Json) -> str | None:
    """Return the session from a field that often, but not always, identifies one conversation."""
    claude = _CLAUDE_SESSION.search(user_id) if isinstance(user_id, str) else None
    if claude:
        return claude[1]
    return next((text for text in named if isinstance(text, str) and _NAME.fullmatch(text)), None)
