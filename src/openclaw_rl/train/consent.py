"""Decide which rules may teach when several people share one policy. Pure.

A score only changes the probability of text that the policy generates; a rule adds a user's own words. On a shared
policy one person's rule affects every user, so with more than one person it needs consent: ``all`` gives it, a number
requires that many people with the same rule, ``none`` lets no rule teach. A single user shares with no other person, so
all rules teach.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from openclaw_rl.types import environment_of

OWNERS = frozenset({"local", "default"})
"""users of a server without a keys file: its one owner, with and without a key"""
_OWNER = "the owner"
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """Sharing terms of a policy; ``given`` maps each rule, normalized, to the people who gave it."""

    share: str
    people: frozenset[str] = frozenset()
    given: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, share: str, users: Iterable[str], given: Iterable[tuple[str, Iterable[str]]] = ()) -> Self:
        """Build the consent from the users who have sent or may send requests, and from each user's known rules."""
        people = frozenset(person(user) for user in users if environment_of(user) is None)
        rules: dict[str, set[str]] = defaultdict(set)
        for user, texts in given:
            for text in texts:
                rules[alike(text)].add(person(user))
        return cls(share=share, people=people, given={rule: frozenset(users) for rule, users in rules.items()})

    def allows(self, rule: str, user: str) -> bool:
        """Return True if this user's rule may teach; an environment's always may, since it is trusted by name."""
        if self.share == "all" or environment_of(user) is not None or self.people <= {person(user)}:
            return True
        givers = self.given.get(alike(rule), frozenset()) | {person(user)}
        return self.share != "none" and len(givers) >= int(self.share)

    @property
    def detail(self) -> str:
        """Explain why a rule does not teach, with the setting to change."""
        terms = "let no rule teach" if self.share == "none" else f"ask for {self.share} people with the very same rule"
        return f"{len(self.people)} people share this policy and {terms} (train.share = {self.share!r})"


SHARE_ALL = Consent(share="all")


def person(user: str) -> str:
    return _OWNER if user in OWNERS else user


def alike(rule: str) -> str:
    """Normalize a rule to its words in order; a looser match would let other words in."""
    return " ".join(_WORD.findall(rule.lower()))
