"""The judge's prompt: each part of a conversation in its own delimiters, which no text inside can close."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Protocol

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.text import hands_over, user_text
from openclaw_rl.ports import Case
from openclaw_rl.types import Message

Count = Callable[[str], int]

SPARE = 128
"""tokens of a prompt for the delimiters and the roles' names"""
LEAST = 32
"""tokens that each part of a prompt gets, however small the model's context is"""


class TokenCounter(Protocol):
    """A model that counts in its own tokens, and how many a question and its answer may have; None: not known yet."""

    @property
    def context(self) -> int | None: ...

    def count(self, text: str) -> int: ...


_SLOT = re.compile(r"\{\{(\w+)\}\}")
_SLOTS = ("history", "request", "steps", "reply", "next_state")
_NEEDED = ("request", "reply", "next_state")
_BRACKETS = str.maketrans(dict.fromkeys("<＜﹤‹〈⟨❮", "&lt;") | dict.fromkeys(">＞﹥›〉⟩❯", "&gt;") | {"&": "&amp;"})
_HIDDEN = re.compile(  # what steers a display or a model unseen: controls, formats, tags, private use, surrogates
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u08e2\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\ud800-\udfff\ue000-\uf8ff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
_MARKER = re.compile(r"\[(?=\s*+(?:/\s*+)?[A-Z][A-Z_ ]{2,}+\])", re.IGNORECASE)
_NAME = re.compile(r"[^\w.-]+")


def approximate(text: str) -> int:
    """Tokens of a text where no tokenizer is at hand: one for every four bytes, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A prompt file: what the system says, what the user says, and the short hash that names this very text."""

    system: str
    user: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt ready to send; ``asks_hint`` says whether an answer may hold a hint."""

    messages: tuple[Message, ...]
    version: str
    asks_hint: bool = False

    @property
    def text(self) -> str:
        """The prompt as one text, for people to read."""
        return "\n\n".join(f"[{message.role}]\n{message.content}" for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """Where the user's own templates are, which of them reads a user's words, tokens of each part, messages around."""

    folder: Path | None
    template: str
    budget: int
    window: int


class PromptBuilder:
    """The question about a case. It asks for a hint only where all of the next state is the user's own words."""

    def __init__(self, settings: PromptSettings, *, answer: int = 0, counter: TokenCounter | None = None) -> None:
        """``answer`` tokens are kept free; without a ``counter`` tokens are approximate and the context has no end."""
        self._settings, self._answer, self._counter = settings, answer, counter
        self._with_hint, self._score_only = load(settings.template, settings.folder), load("score", settings.folder)

    def question(self, case: Case) -> Question:
        """The prompt of a case."""
        after = case.outcome.next_state
        own = all(message.role == "user" and not hands_over(message.content) for message in after)
        hint = own and bool(user_text(after))
        made = self._with_hint if hint else self._score_only
        count = self._counter.count if self._counter else approximate
        question = render(case, made, budget=self._budget(made), window=self._settings.window, count=count)
        return replace(question, asks_hint=hint)

    def _budget(self, made: Template) -> int:
        """Tokens of each part: as set, or what the model's context leaves when all parts are full."""
        if self._counter is None or self._counter.context is None:
            return self._settings.budget
        given = self._counter.count(made.system) + self._counter.count(made.user) + self._answer + SPARE
        return min(self._settings.budget, max((self._counter.context - given) // len(_SLOTS), LEAST))


def load(name: str, folder: Path | None = None) -> Template:
    """The template ``name``: the user's own from ``folder`` if it is there, the built-in one otherwise."""
    own = folder / f"{name}.md" if folder else None
    if own is not None and own.is_file():
        return template(own.read_text(encoding="utf-8"), where=str(own))
    text = resources.files("openclaw_rl.judge").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")
    return template(text, where=f"{name}.md")


def template(text: str, *, where: str) -> Template:
    """Split at the first line ``---`` into system and user; every slot at most once, the needed ones exactly once."""
    system, mark, user = text.partition("\n---\n")
    slots = _SLOT.findall(text)
    wrong = sorted({slot for slot in slots if slot not in _SLOTS or slots.count(slot) > 1})
    missing = [slot for slot in _NEEDED if slot not in _SLOT.findall(user)]
    if not mark or wrong or missing:
        slots_text = ", ".join(f"{{{{{slot}}}}}" for slot in _SLOTS)
        raise ConfigError(
            f"the judge's prompt {where} cannot be used (unknown or doubled: {wrong}, missing after ---: {missing})",
            remedy=f"write the system text, a line ---, then the slots {slots_text}",
        )
    return Template(system=system.strip(), user=user.strip(), version=hashlib.sha256(text.encode()).hexdigest()[:10])


def escape(text: str) -> str:
    """The text as quoted lines: no bracket, no marker and no hidden character of it is left as such."""
    seen = _MARKER.sub("&#91;", _HIDDEN.sub("", text).translate(_BRACKETS))
    return "\n".join(f"| {line}" for line in seen.splitlines() or [""])


def block(tag: str, role: str | None, name: str | None, body: str) -> str:
    """One delimited part; ``body`` is escaped already."""
    label = f' role="{role}"' if role else ""
    label += f' name="{_NAME.sub("_", name)[:40]}"' if name else ""
    return f"<{tag}{label}>\n{body}\n</{tag}>"


def cut(text: str, budget: int, count: Count = approximate) -> str:
    """The text whole if its escaped form fits ``budget`` tokens, else its head and tail and how much is gone."""
    if count(escape(text)) <= budget:
        return text
    low, high = 0, min(len(text), 12 * max(budget, 0))
    while high - low > high // 64:  # near enough: each try counts the tokens anew
        keep = (low + high + 1) // 2
        low, high = (keep, high) if count(escape(_ends(text, keep))) <= budget else (low, keep - 1)
    return _ends(text, low)


def _ends(text: str, keep: int) -> str:
    if keep >= len(text):
        return text
    head = keep - keep // 2
    tail = text[len(text) - keep // 2 :]
    return f"{text[:head]}\n(... {len(text) - keep} characters left out ...)\n{tail}"


def spoken(message: Message) -> str:
    """A message as text, its calls and pictures named."""
    parts = [message.content] if message.content else []
    parts += [f"(calls {call.name} with {call.arguments})" for call in message.tool_calls]
    parts += ["(a picture)"] * len(message.images)
    return "\n".join(parts)


def render(case: Case, made: Template, *, budget: int, window: int, count: Count = approximate) -> Question:
    """The prompt for one case, each part cut to ``budget`` tokens.

    History is the last ``window`` messages before the request, steps the last since it.
    """
    parts = _parts(case, window)
    filled = {slot: _blocks(slot, parts[slot], budget, count) for slot in _SLOTS}
    user = _SLOT.sub(lambda found: filled[found.group(1)], made.user)
    user = re.sub(r"\n{3,}", "\n\n", user).strip()
    return Question(
        messages=(Message(role="system", content=made.system), Message(role="user", content=user)), version=made.version
    )


def _parts(case: Case, window: int) -> dict[str, Sequence[Message]]:
    messages = [message for message in case.turn.prompt.messages if message.role != "system"]
    at = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    request = messages[at : at + 1] if at >= 0 else [Message(role="user", content="")]
    before = messages[:at] if at > 0 else []
    return {
        "history": before[len(before) - min(window, len(before)) :],
        "request": request,
        "steps": messages[at + 1 :][-window:] if window else [],
        "reply": [case.turn.completion.reply],
        "next_state": case.outcome.next_state,
    }


def _blocks(slot: str, messages: Sequence[Message], budget: int, count: Count) -> str:
    """The messages of a part, each in its own block; the newest are cut last."""
    blocks: list[str] = []
    left = budget
    for at, message in enumerate(reversed(messages)):
        fair = left // (len(messages) - at)
        body = escape(cut(spoken(message), max(fair, 0), count))
        left -= count(body)
        role = message.role if slot in ("history", "steps", "next_state") else None
        blocks.append(block(slot, role, message.name, body))
    return "\n".join(reversed(blocks))
