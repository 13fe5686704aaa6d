"""Access to the page: loopback without a key, else a login with a key.

Without keys all users of this machine are one person, so a request is accepted only under a loopback name (a foreign
name that resolves to this machine is another site's trick) and from a page at this address. With keys, a cookie that no
script can read and no other site can send represents a login; the key itself stays in this process.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from starlette.requests import Request

from openclaw_rl.errors import NotAllowed, RequestError
from openclaw_rl.web import is_own_origin, refuse_foreign_page

COOKIE = "openclaw_page"
MARK = "x-openclaw-page"
"""a header on each of the page's actions, which no form on another site can send"""
LASTS = 12 * 3600.0
"""seconds after which a login expires"""
_MOST_LOGINS = 1000
_MOST_TRIES = 10
_TRIES_SECONDS = 60.0
_MOST_ADDRESSES = 1000

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""the content security policy: no external resource and no inline script runs"""
_SEARCH_POLICY = POLICY.replace("form-action 'none'", "form-action 'self'")
SEARCH_HEADERS: Mapping[str, str] = {"content-security-policy": _SEARCH_POLICY}
"""for a view with a search form, which the browser submits itself; all other forms, also a key's, need our script"""
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A page user, the key that acts for them (None if none is needed); ``admin``: they see all users' rows."""

    user: str
    key: str | None
    admin: bool

    @property
    def scope(self) -> str | None:
        """The user whose rows are visible: their own, None for all."""
        return None if self.admin else self.user


class Door:
    """Checks logins. ``keys`` maps each key to its user; ``admins`` are the users who see all rows."""

    def __init__(
        self,
        keys: Mapping[str, str],
        *,
        admins: Collection[str],
        nobody: str = "local",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``nobody`` is the only user's name if there are no keys."""
        self._keys = [(key.encode(), key, user) for key, user in keys.items()]
        self._admins = frozenset(admins)
        self._nobody = Person(user=nobody, key=None, admin=True)
        self._clock = clock
        self._inside: OrderedDict[str, tuple[float, Person]] = OrderedDict()
        self._tries: OrderedDict[str, list[float]] = OrderedDict()
        self.open = not keys

    def person(self, request: Request) -> Person | None:
        """Return the request's user; None if a login is needed. Raise RequestError for a forbidden request."""
        if self.open:
            refuse_foreign_page(request.headers, ())
            return self._nobody
        login = self._inside.get(request.cookies.get(COOKIE, ""))
        return login[1] if login is not None and self._clock() - login[0] < LASTS else None

    def log_in(self, key: str, *, address: str) -> str:
        """Log in; return the new login's token. Raise NotAllowed for an unknown key, counted for ``address`` alone.

        A known key is admitted regardless of earlier attempts: wrong keys from others must not lock its owner out.
        """
        now, person = self._clock(), self._of(key)
        if person is None:
            raise self._wrong_key(address, now)
        token = secrets.token_urlsafe(32)
        self._inside[token] = (now, person)
        while len(self._inside) > _MOST_LOGINS:
            self._inside.popitem(last=False)
        return token

    def _wrong_key(self, address: str, now: float) -> NotAllowed:
        """Count a wrong key for an address; return the refusal."""
        tries = [at for at in self._tries.pop(address, []) if now - at < _TRIES_SECONDS]
        self._tries[address] = [*tries, now][-_MOST_TRIES:]
        if len(self._tries) > _MOST_ADDRESSES:
            self._tries.popitem(last=False)
        if len(tries) >= _MOST_TRIES:
            return NotAllowed("too many wrong keys", remedy="wait a minute, then try again")
        return NotAllowed("this key is not known", remedy="give a key of serve.keys_file, or OPENCLAW_API_KEY")

    def log_out(self, token: str) -> None:
        """End the login, for all holders of its token."""
        self._inside.pop(token, None)

    def _of(self, given: str) -> Person | None:
        person = None
        for packed, key, user in self._keys:  # compares all of them, so that timing reveals nothing
            if hmac.compare_digest(packed, given.encode()):
                person = Person(user=user, key=key, admin=user in self._admins)
        return person


def refuse_foreign_act(headers: Mapping[str, str]) -> None:
    """Refuse a change unless a page at this address sends it."""
    if headers.get(MARK) is None:
        raise RequestError(f"the header {MARK} is missing", status=403, remedy="use the page or the API")
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if site != "same-origin" or (origin is not None and not is_own_origin(origin, headers.get("host", ""))):
        raise RequestError("another site sent this request", status=403, remedy="use the page itself")
