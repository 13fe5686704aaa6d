"""Who may use the API: keys and their users."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping

from openclaw_rl.errors import NotAllowed, RequestError

OPEN_USER = "local"
"""who everybody is where no keys are set"""

Headers = Mapping[str, str]


def headers_of(raw: Collection[tuple[bytes, bytes]], limit: int) -> dict[str, str]:
    """Headers by lower-case name; too many bytes of them are refused."""
    if sum(len(name) + len(value) for name, value in raw) > limit:
        raise RequestError(f"the headers are larger than {limit} bytes", status=431)
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


class ApiKeys:
    """Knows a user by the key; compares in constant time.

    A user called ``env:NAME`` is an environment: only whoever writes the keys can make one. ``own`` are the keys of
    environments that this process runs itself; they admit them and shut nobody out.
    """

    def __init__(self, keys: Mapping[str, str], own: Mapping[str, str]) -> None:
        self._keys = [(key.encode(), user) for key, user in {**keys, **own}.items()]
        self.open = not keys

    def user(self, headers: Headers) -> str:
        given = _given_key(headers).encode("latin-1")
        found = None
        for key, user in self._keys:  # all of them, so that time tells nothing
            if hmac.compare_digest(key, given):
                found = user
        if found is None and self.open:
            return OPEN_USER
        if found is None:
            what = "this key is not known" if given else "a key is needed"
            raise NotAllowed(what, remedy="send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        return found


def _given_key(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip()
