"""Which rules may teach where several people share one policy. Pure.

A score can only make likelier or rarer what the policy generates; a rule puts somebody's words into it. With one
policy for all, what one person's rule teaches is what everybody is served, so with more than one person it takes
consent: ``all`` gives it, a number asks that so many people have given the very same rule, ``none`` lets no rule teach.
One person alone shares with nobody, and everything teaches.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from openclaw_rl.types import environment_of

OWNERS = frozenset({"local", "default"})
"""the users of a server without a keys file: its one owner, with and without a key"""
_OWNER = "the owner"
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """What the people who share a policy agreed on. ``given`` has, by rule, who gave it; rules alike are one."""

    share: str
    people: frozenset[str] = frozenset()
    given: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, share: str, users: Iterable[str], given: Iterable[tuple[str, Iterable[str]]] = ()) -> Self:
        """From the users who have sent a request or may send one, and the rules of each as far as they are known."""
        people = frozenset(person(user) for user in users if environment_of(user) is None)
        rules: dict[str, set[str]] = defaultdict(set)
        for user, texts in given:
            for text in texts:
                rules[alike(text)].add(person(user))
        return cls(share=share, people=people, given={rule: frozenset(users) for rule, users in rules.items()})

    def allows(self, rule: str, user: str) -> bool:
        """May this rule of this user teach? An environment's may: it is trusted by name, or it gives none."""
        if self.share == "all" or environment_of(user) is not None or self.people <= {person(user)}:
            return True
        givers = self.given.get(alike(rule), frozenset()) | {person(user)}
        return self.share != "none" and len(givers) >= int(self.share)

    @property
    def detail(self) -> str:
        """Why a rule does not teach, and what to do."""
        terms = "let no rule teach" if self.share == "none" else f"ask for {self.share} people with the very same rule"
        return f"{len(self.people)} people share this policy and {terms} (train.share = {self.share!r})"


SHARE_ALL = Consent(share="all")


def person(user: str) -> str:
    return _OWNER if user in OWNERS else user


def alike(rule: str) -> str:
    """The same for two rules of the same words in the same order; anything looser would let words be slipped in."""
    return " ".join(_WORD.findall(rule.lower()))
