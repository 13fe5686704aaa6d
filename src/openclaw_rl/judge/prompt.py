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
"""minimum tokens for each part of a prompt, regardless of the model's context"""


class TokenCounter(Protocol):
    """A model that counts its own tokens; ``context`` limits a question with its answer, None while unknown."""

    @property
    def context(self) -> int | None: ...

    def count(self, text: str) -> int: ...


_SLOT = re.compile(r"\{\{(\w+)\}\}")
_SLOTS = ("history", "request", "steps", "reply", "next_state")
_NEEDED = ("request", "reply", "next_state")
_BRACKETS = str.maketrans(dict.fromkeys("<＜﹤‹〈⟨❮", "&lt;") | dict.fromkeys(">＞﹥›〉⟩❯", "&gt;") | {"&": "&amp;"})
_HIDDEN = re.compile(  # steers a display or a model unseen: controls, formats, tags, private use, surrogates
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u08e2\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\ud800-\udfff\ue000-\uf8ff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
_MARKER = re.compile(r"\[(?=\s*+(?:/\s*+)?[A-Z][A-Z_ ]{2,}+\])", re.IGNORECASE)
_NAME = re.compile(r"[^\w.-]+")


def approximate(text: str) -> int:
    """Estimate a text's tokens without a tokenizer: one for every four bytes, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A prompt file: its system text, its user text, and the file's short hash."""

    system: str
    user: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt ready to send; ``asks_hint``: an answer may contain a hint."""

    messages: tuple[Message, ...]
    version: str
    asks_hint: bool = False

    @property
    def text(self) -> str:
        """Return the prompt as one text, for people to read."""
        return "\n\n".join(f"[{message.role}]\n{message.content}" for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """Folder of the user's own templates, template for a user's words, tokens per part, messages around."""

    folder: Path | None
    template: str
    budget: int
    window: int


class PromptBuilder:
    """Builds the question about a case; asks for a hint only if all of the next state is the user's own words."""

    def __init__(self, settings: PromptSettings, *, answer: int = 0, counter: TokenCounter | None = None) -> None:
        """``answer`` tokens stay free; without a ``counter``, tokens are approximate and the context is unlimited."""
        self._settings, self._answer, self._counter = settings, answer, counter
        self._with_hint, self._score_only = load(settings.template, settings.folder), load("score", settings.folder)

    def question(self, case: Case) -> Question:
        """Return a case's prompt."""
        after = case.outcome.next_state
        own_only = all(message.role == "user" and not hands_over(message.content) for message in after)
        hint = own_only and bool(user_text(after))
        chosen = self._with_hint if hint else self._score_only
        count = self._counter.count if self._counter else approximate
        question = render(case, chosen, budget=self._budget(chosen), window=self._settings.window, count=count)
        return replace(question, asks_hint=hint)

    def _budget(self, made: Template) -> int:
        """Return the tokens per part: the setting, or an equal share of the model's context if that is smaller."""
        if self._counter is None or self._counter.context is None:
            return self._settings.budget
        reserved = self._counter.count(made.system) + self._counter.count(made.user) + self._answer + SPARE
        return min(self._settings.budget, max((self._counter.context - reserved) // len(_SLOTS), LEAST))


def load(name: str, folder: Path | None = None) -> Template:
    """Return the template ``name``: the user's own from ``folder`` if it exists, the built-in one otherwise."""
    path = folder / f"{name}.md" if folder else None
    if path is not None and path.is_file():
        return template(path.read_text(encoding="utf-8"), where=str(path))
    text = resources.files("openclaw_rl.judge").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")
    return template(text, where=f"{name}.md")


def template(text: str, *, where: str) -> Template:
    """Split at the first line ``---`` into system and user; every slot at most once, the required ones exactly once."""
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
    """Return the text as quoted lines, with brackets and markers escaped and hidden characters removed."""
    escaped = _MARKER.sub("&#91;", _HIDDEN.sub("", text).translate(_BRACKETS))
    return "\n".join(f"| {line}" for line in escaped.splitlines() or [""])


def block(tag: str, role: str | None, name: str | None, body: str) -> str:
    """Return one delimited part; ``body`` is already escaped."""
    label = f' role="{role}"' if role else ""
    label += f' name="{_NAME.sub("_", name)[:40]}"' if name else ""
    return f"<{tag}{label}>\n{body}\n</{tag}>"


def cut(text: str, budget: int, count: Count = approximate) -> str:
    """Return the text if its escaped form fits ``budget`` tokens, else its head and tail with the omitted length."""
    if count(escape(text)) <= budget:
        return text
    low, high = 0, min(len(text), 12 * max(budget, 0))
    while high - low > high // 64:  # precise enough: each try counts the tokens again
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
    """Return a message as text, with its calls and pictures named."""
    parts = [message.content] if message.content else []
    parts += [f"(calls {call.name} with {call.arguments})" for call in message.tool_calls]
    parts += ["(a picture)"] * len(message.images)
    return "\n".join(parts)


def render(case: Case, made: Template, *, budget: int, window: int, count: Count = approximate) -> Question:
    """Return the prompt for one case, each part cut to ``budget`` tokens.

    History is the last ``window`` messages before the request, steps the last since it.
    """
    parts = _parts(case, window)
    filled = {slot: _blocks(slot, parts[slot], budget, count) for slot in _SLOTS}
    user = _SLOT.sub(lambda match: filled[match.group(1)], made.user)
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
    """Return a part's messages, each in its own block; the newest are cut last."""
    blocks: list[str] = []
    remaining = budget
    for at, message in enumerate(reversed(messages)):
        fair = remaining // (len(messages) - at)
        body = escape(cut(spoken(message), max(fair, 0), count))
        remaining -= count(body)
        role = message.role if slot in ("history", "steps", "next_state") else None
        blocks.append(block(slot, role, message.name, body))
    return "\n".join(reversed(blocks))
