"""Prompts for simulated users: everyday prompts and generated word problems; and relevance checks for replies. Pure.

training(), held_out()      two halves without a common prompt, also after additions
is_relevant(task, reply)    the reply names the task's subject
names_subject(text, reply)  the same for any question, judged by its own words
"""
# ruff: noqa: SIM905  (a word list is more readable as one text)

from __future__ import annotations

import functools
import hashlib
import random
import re
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.tasks.preferences import About
from openclaw_rl.text import WORD

_ADVICE = re.compile(r"How (?:do|can|should) I\b|What (?:can|should|do) I\b|What helps\b|What .{0,120} good\b")
_IRREGULAR = {
    **dict.fromkeys(("leaves", "leafs"), "leaf"),
    **dict.fromkeys(("teeth", "tooth"), "tooth"),
    **dict.fromkeys(("children", "kid", "kids"), "child"),
    **dict.fromkeys(("ran", "running", "runner", "runners"), "run"),
    **dict.fromkeys(("slept", "asleep"), "sleep"),
    **dict.fromkeys(("drew", "drawn"), "draw"),
    **dict.fromkeys(("wrote", "written", "writing"), "write"),
    **dict.fromkeys(("froze", "frozen", "freezing"), "freeze"),
    **dict.fromkeys(("woke", "woken"), "wake"),
    **dict.fromkeys(("bought",), "buy"),
    **dict.fromkeys(("lying", "lied"), "lie"),
    **dict.fromkeys(("dying",), "die"),
    **dict.fromkeys(("threw", "thrown"), "throw"),
    **dict.fromkeys(("knives",), "knife"),
    **dict.fromkeys(("aeroplane", "aeroplanes"), "airplane"),
    **dict.fromkeys(("colour", "colours", "colourful"), "color"),
}
_ENDINGS = (
    ("s", ("",)),
    ("es", ("",)),
    ("ies", ("y",)),
    ("ing", ("", "e")),
    ("ed", ("", "e")),
    ("ied", ("y",)),
    ("er", ("", "e")),
    ("ers", ("", "e")),
    ("ic", ("",)),
    ("al", ("", "e")),
    ("ful", ("",)),
    ("ity", ("",)),
    ("ly", ("",)),
)
"""word endings, and their possible replacements in the root"""
_SUBSTANCE = 4
"""minimum letters for a word that can name a question's subject"""
_ASKING = frozenset(
    "what which when where does have with that this there their they them your from about into some make please would"
    " could should tell give know want need like more most good best help explain write many much work mean".split()
)
"""longer words that occur in questions on any subject"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt. A relevant reply contains at least one of ``mentions``; ``answer`` is the right figure, if any."""

    prompt: str
    mentions: tuple[str, ...]
    about: About
    answer: str | None = None


@functools.cache
def everyday() -> tuple[Task, ...]:
    """Return all written prompts, in file order."""
    tasks: list[Task] = []
    measures = False
    for line in Path(__file__).with_name("everyday.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            measures = line == "[measures]"
        elif "|" in line:
            prompt, _, mentions = line.partition("|")
            about: About = "measures" if measures else "advice" if _ADVICE.match(prompt) else "facts"
            named = tuple(word.strip() for word in mentions.split(","))
            tasks.append(Task(prompt=prompt.strip(), mentions=named, about=about))
    return tuple(tasks)


def is_held_out(prompt: str) -> bool:
    """Return True for a held-out prompt: a fixed rule on the prompt's own text."""
    return hashlib.sha256(prompt.encode()).digest()[0] % 2 == 1


def training(about: About = "everyday") -> tuple[Task, ...]:
    """Return the prompts that users send while the policy learns."""
    return tuple(task for task in everyday() if _fits(task, about) and not is_held_out(task.prompt))


def held_out(about: About = "everyday") -> tuple[Task, ...]:
    """Return the prompts reserved for measurement."""
    return tuple(task for task in everyday() if _fits(task, about) and is_held_out(task.prompt))


def _fits(task: Task, about: About) -> bool:
    return task.about == about or (about == "everyday" and task.about != "measures")


# --- word problems ---

_THINGS = ("apples", "books", "pencils", "coins", "eggs", "stamps", "cookies", "marbles", "chairs", "tickets", "cards")


def word_problems(count: int, *, seed: int, held: bool = False) -> tuple[Task, ...]:
    """Return ``count`` different word problems with their answers; those with ``held`` never occur without it."""
    rng, tasks = random.Random(seed), dict[str, Task]()
    while len(tasks) < count:
        task = _word_problem(rng)
        if is_held_out(task.prompt) == held:
            tasks[task.prompt] = task
    return tuple(tasks.values())


def _word_problem(rng: random.Random) -> Task:
    thing = rng.choice(_THINGS)
    a, b, c = rng.randint(10, 40), rng.randint(2, 12), rng.randint(2, 9)
    story, answer = rng.choice(
        (
            (f"I have {a} {thing} and get {b} more. How many {thing} do I have now?", a + b),
            (f"I have {a + b} {thing} and give {b} away. How many {thing} are left?", a),
            (f"There are {c} boxes with {b} {thing} in each. How many {thing} are there in all?", b * c),
            (f"{c} friends share {b * c} {thing} evenly. How many {thing} does each friend get?", b),
            (f"I buy {a} {thing}, lose {c} of them and find {b} more. How many {thing} do I have?", a - c + b),
        )
    )
    return Task(prompt=story, mentions=(thing, str(answer)), about="facts", answer=str(answer))


def is_right(task: Task, reply: str) -> bool:
    """Return True if the last figure in the reply is the task's answer."""
    figures = re.findall(r"\d+(?:,\d{3})*", reply)
    return task.answer is not None and bool(figures) and figures[-1].replace(",", "") == task.answer


# --- relevance ---


def is_relevant(task: Task, reply: str) -> bool:
    """Return True if the reply names the task's subject, in any inflection."""
    named = {root for word in _split(reply) for root in _roots(word)}
    return any(all(_roots(word) & named for word in _split(mention)) for mention in task.mentions)


def names_subject(question: str, reply: str) -> bool:
    """Return True if the reply names the question's subject.

    For a shipped prompt the known subject decides, for any other question a word of substance that both contain.
    """
    named = {root for word in _split(reply) for root in _roots(word)}
    words = [word for word in _split(question) if _says_what(word)]
    shipped = _by_prompt().get(question)
    if shipped is not None:
        return is_relevant(shipped, reply)
    return not words or any(_roots(word) & named for word in words)


def _says_what(word: str) -> bool:
    """Return True for a word of substance in Latin letters: other scripts inflect differently, or use no spaces."""
    return len(word) >= _SUBSTANCE and word not in _ASKING and word[0] < "\u0250"


@functools.cache
def _by_prompt() -> dict[str, Task]:
    return {task.prompt: task for task in everyday()}


def _split(text: str) -> list[str]:
    """Return the words, and the parts of hyphenated words."""
    words = [word.replace("’", "'").removesuffix("'s") for word in WORD.findall(text.lower())]
    return [*words, *(part for word in words if "-" in word for part in word.split("-"))]


def _roots(word: str) -> set[str]:
    """Return the possible roots of a word, itself included: baking has bak, bake and baking."""
    forms = {word, _IRREGULAR.get(word, word)}
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 2:
            bare = word[: -len(ending)]
            forms |= {bare + addition for addition in instead}
            if "" in instead and bare[-1:] == bare[-2:-1]:
                forms.add(bare[:-1])
    return {root for root in forms if len(root) > 2 or root == word}
