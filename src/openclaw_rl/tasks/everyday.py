"""What simulated users ask: everyday prompts and generated word problems; and whether a reply is relevant. Pure.

training(), held_out()      two halves that share no prompt, whatever is added later
is_relevant(task, reply)    the reply names what was asked about
names_subject(text, reply)  the same of any question, whose own words are all that is known
"""
# ruff: noqa: SIM905  (a list of words is read as a text)

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
"""how words end, and what may have stood there before"""
_SUBSTANCE = 4
"""letters of a word that says what a question is about"""
_ASKING = frozenset(
    "what which when where does have with that this there their they them your from about into some make please would"
    " could should tell give know want need like more most good best help explain write many much work mean".split()
)
"""longer words that are in questions about anything"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to ask. A relevant reply names at least one of ``mentions``; ``answer`` is the right figure, if any."""

    prompt: str
    mentions: tuple[str, ...]
    about: About
    answer: str | None = None


@functools.cache
def everyday() -> tuple[Task, ...]:
    """All written prompts, in the order of the file."""
    found: list[Task] = []
    measures = False
    for line in Path(__file__).with_name("everyday.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            measures = line == "[measures]"
        elif "|" in line:
            prompt, _, mentions = line.partition("|")
            about: About = "measures" if measures else "advice" if _ADVICE.match(prompt) else "facts"
            named = tuple(word.strip() for word in mentions.split(","))
            found.append(Task(prompt=prompt.strip(), mentions=named, about=about))
    return tuple(found)


def is_held_out(prompt: str) -> bool:
    """The fixed rule of the split: it looks at the prompt's own text alone."""
    return hashlib.sha256(prompt.encode()).digest()[0] % 2 == 1


def training(about: About = "everyday") -> tuple[Task, ...]:
    """The prompts that users ask while the policy learns."""
    return tuple(task for task in everyday() if _fits(task, about) and not is_held_out(task.prompt))


def held_out(about: About = "everyday") -> tuple[Task, ...]:
    """The prompts that are only ever used to measure."""
    return tuple(task for task in everyday() if _fits(task, about) and is_held_out(task.prompt))


def _fits(task: Task, about: About) -> bool:
    return task.about == about or (about == "everyday" and task.about != "measures")


# --- word problems ---

_THINGS = ("apples", "books", "pencils", "coins", "eggs", "stamps", "cookies", "marbles", "chairs", "tickets", "cards")


def word_problems(count: int, *, seed: int, held: bool = False) -> tuple[Task, ...]:
    """``count`` different word problems with their answers; those with ``held`` are never among those without."""
    rng, found = random.Random(seed), dict[str, Task]()
    while len(found) < count:
        task = _word_problem(rng)
        if is_held_out(task.prompt) == held:
            found[task.prompt] = task
    return tuple(found.values())


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
    """Whether the last figure of the reply is the task's answer."""
    figures = re.findall(r"\d+(?:,\d{3})*", reply)
    return task.answer is not None and bool(figures) and figures[-1].replace(",", "") == task.answer


# --- relevance ---


def is_relevant(task: Task, reply: str) -> bool:
    """Whether the reply names what was asked about, in whatever inflection."""
    named = {root for word in _split(reply) for root in _roots(word)}
    return any(all(_roots(word) & named for word in _split(mention)) for mention in task.mentions)


def names_subject(question: str, reply: str) -> bool:
    """Whether the reply has a word of substance of the question; of a shipped prompt, what it is known to be about."""
    named = {root for word in _split(reply) for root in _roots(word)}
    words = [word for word in _split(question) if _says_what(word)]
    known = _by_prompt().get(question)
    if known is not None:
        return is_relevant(known, reply)
    return not words or any(_roots(word) & named for word in words)


def _says_what(word: str) -> bool:
    """Latin letters alone: other scripts inflect otherwise, or write no spaces."""
    return len(word) >= _SUBSTANCE and word not in _ASKING and word[0] < "\u0250"


@functools.cache
def _by_prompt() -> dict[str, Task]:
    return {task.prompt: task for task in everyday()}


def _split(text: str) -> list[str]:
    """The words, and the parts of those with a hyphen."""
    found = [word.replace("’", "'").removesuffix("'s") for word in WORD.findall(text.lower())]
    return [*found, *(part for word in found if "-" in word for part in word.split("-"))]


def _roots(word: str) -> set[str]:
    """What a word may be an inflection of, itself included: baking is of bak, bake and baking."""
    found = {word, _IRREGULAR.get(word, word)}
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 2:
            bare = word[: -len(ending)]
            found |= {bare + addition for addition in instead}
            if "" in instead and bare[-1:] == bare[-2:-1]:
                found.add(bare[:-1])
    return {root for root in found if len(root) > 2 or root == word}
