"""Who comes in: loopback without a key, else whoever logs in with one.

Without keys everybody on this machine is one person, so the door looks at how a request came: by a loopback name (a
foreign name that leads here is a trick of another site) and from a page of this very address. With keys a cookie that
no script can read and no other site can send stands for a login; the key itself stays in this process.
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
"""a header that every act of the page carries and that no form of another site can send"""
LASTS = 12 * 3600.0
"""seconds after which a login is over"""
_MOST_LOGINS = 1000
_MOST_TRIES = 10
_TRIES_SECONDS = 60.0
_MOST_ADDRESSES = 1000

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""the content security policy: nothing from elsewhere, and nothing that stands inside a page, runs"""
_SEARCH_POLICY = POLICY.replace("form-action 'none'", "form-action 'self'")
SEARCH_HEADERS: Mapping[str, str] = {"content-security-policy": _SEARCH_POLICY}
"""of a view with a search, which the browser sends itself; every other form waits for our script, a key's among them"""
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
    """Who looks: the user, the key that acts for them (None where none is needed), and whether they see everybody."""

    user: str
    key: str | None
    admin: bool

    @property
    def scope(self) -> str | None:
        """Whose rows they see: their own, None for everybody's."""
        return None if self.admin else self.user


class Door:
    """Lets people in. ``keys`` maps each key to its user; ``admins`` are the users who see everybody."""

    def __init__(
        self,
        keys: Mapping[str, str],
        *,
        admins: Collection[str],
        nobody: str = "local",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``nobody`` is who everybody is where there are no keys."""
        self._keys = [(key.encode(), key, user) for key, user in keys.items()]
        self._admins = frozenset(admins)
        self._nobody = Person(user=nobody, key=None, admin=True)
        self._clock = clock
        self._inside: OrderedDict[str, tuple[float, Person]] = OrderedDict()
        self._tries: OrderedDict[str, list[float]] = OrderedDict()
        self.open = not keys

    def person(self, request: Request) -> Person | None:
        """Who asks; None for somebody who has to log in first. Raises RequestError for what must not come in."""
        if self.open:
            refuse_foreign_page(request.headers, ())
            return self._nobody
        kept = self._inside.get(request.cookies.get(COOKIE, ""))
        return kept[1] if kept is not None and self._clock() - kept[0] < LASTS else None

    def log_in(self, key: str, *, address: str) -> str:
        """The token of a new login. NotAllowed for an unknown key, which counts against ``address`` alone.

        A known key is admitted whatever came before it: wrong keys of others must not lock its holder out.
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
        """Count a wrong key of an address; the refusal."""
        tries = [at for at in self._tries.pop(address, []) if now - at < _TRIES_SECONDS]
        self._tries[address] = [*tries, now][-_MOST_TRIES:]
        if len(self._tries) > _MOST_ADDRESSES:
            self._tries.popitem(last=False)
        if len(tries) >= _MOST_TRIES:
            return NotAllowed("too many wrong keys", remedy="wait a minute, then try again")
        return NotAllowed("this key is not known", remedy="give a key of serve.keys_file, or OPENCLAW_API_KEY")

    def log_out(self, token: str) -> None:
        """The login is over, whatever else knows its token."""
        self._inside.pop(token, None)

    def _of(self, given: str) -> Person | None:
        found = None
        for packed, key, user in self._keys:  # all of them, so that time tells nothing
            if hmac.compare_digest(packed, given.encode()):
                found = Person(user=user, key=key, admin=user in self._admins)
        return found


def refuse_foreign_act(headers: Mapping[str, str]) -> None:
    """What changes something must come from a page of this very address."""
    if headers.get(MARK) is None:
        raise RequestError(f"the header {MARK} is missing", status=403, remedy="act from the page, or by the API")
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if site != "same-origin" or (origin is not None and not is_own_origin(origin, headers.get("host", ""))):
        raise RequestError("another site asks for this", status=403, remedy="act from the page itself")
