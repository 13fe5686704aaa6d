"""Where a note is put into the prompt, and in which words, so that it is obeyed: variants beside each other.

    python benchmarks/note_place.py --device cuda                          all variants, 40 prompts each
    python benchmarks/note_place.py --prompts 8 --variants after:heard,both:heard --asks short,list

A variant is PLACE:WORDING. A place is where the notes go; a wording is the user's own words (said), the rule that the
judge makes of them (heard), or a sentence with a measure where one is known (plain). An ask is what the notes want:
``short``, ``one_sentence`` and ``list`` in the words of the prompted baseline, ``own_…`` in users' words, others that
nothing was tuned on, and two notes together. Each cell of the table is: share that meets it / share that names what was
asked about / mean words. Everything goes to a JSON file too, after each variant, with some replies to read.

The prompts are those that users ask while the policy learns, so that what is chosen here can be confirmed on held-out
ones (``--held-out``). The same seed samples the same prompt under every variant.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openclaw_rl import config as settings
from openclaw_rl.app.factories import default_sampling, running_policy
from openclaw_rl.config import Config
from openclaw_rl.experiments.results import markdown
from openclaw_rl.experiments.sessions import is_degenerate
from openclaw_rl.judge.reaction import read
from openclaw_rl.ports import Policy, whole_reply
from openclaw_rl.preferences.wording import wording
from openclaw_rl.tasks import everyday
from openclaw_rl.tasks.everyday import Task, is_relevant
from openclaw_rl.tasks.preferences import PREFERENCES, About
from openclaw_rl.text import items, word_count
from openclaw_rl.types import Message, Prompt, Sampling

Checker = Callable[[str], bool]
SHOWN = 3
"""replies of each cell that are kept to read"""
AT_ONCE = {"cuda": 128, "cpu": 16}
"""replies at once, by kind of device"""


# --- what is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one or two notes want. Prompt by prompt the next of ``phrasings`` is said; ``met_by`` has a check a note."""

    name: str
    phrasings: tuple[tuple[str, ...], ...]
    met_by: tuple[Checker, ...]
    about: About = "everyday"
    max_tokens: int = 128
    sampling: Mapping[str, float] = field(default_factory=dict)


def _lower(reply: str) -> bool:
    return word_count(reply) > 0 and reply == reply.lower()


def _asks_back(reply: str) -> bool:
    return reply.rstrip(" \n*_\"”’')").endswith("?")


def _no_list(reply: str) -> bool:
    return word_count(reply) > 0 and not items(reply)


_WORDS: dict[str, tuple[Checker, tuple[str, ...]]] = {
    "short": (
        PREFERENCES["short"].met_by,
        ("keep it short please", "Too long.", "shorter answers please", "can you be brief?", "under 30 words please"),
    ),
    "one_sentence": (
        PREFERENCES["one_sentence"].met_by,
        ("answer in one sentence", "one sentence is enough", "say it in a single sentence please", "One sentence!"),
    ),
    "list": (
        PREFERENCES["list"].met_by,
        ("use a list", "bullet points please", "put it in a list please", "I'd prefer a bulleted list."),
    ),
    "no_list": (_no_list, ("no bullet points", "please stop using lists", "prose, no lists please")),
    "lower": (_lower, ("answer in lower case", "write everything in lowercase please", "no capital letters please")),
    "question": (
        _asks_back,
        ("end with a question", "always finish with a question for me", "please end your answers with a question"),
    ),
}
"""by what is wanted: how replies are checked, and the words of people who want it"""


def _baseline(name: str) -> Ask:
    """A preference in the words of its prompted baseline."""
    preference = PREFERENCES[name]
    return Ask(
        name=name,
        phrasings=((preference.hint,),),
        met_by=(preference.met_by,),
        max_tokens=preference.max_tokens,
        sampling=preference.sampling,
    )


def _own(name: str, *, like: str | None = None, **more: Any) -> Ask:
    met_by, words = _WORDS[name]
    label, phrasings = f"own_{name}" if like else name, tuple((one,) for one in words)
    if like:
        more |= {"max_tokens": PREFERENCES[like].max_tokens, "sampling": PREFERENCES[like].sampling}
    return Ask(name=label, phrasings=phrasings, met_by=(met_by,), **more)


def _two(first: str, second: str) -> Ask:
    (one, words), (other, more) = _WORDS[first], _WORDS[second]
    count = max(len(words), len(more))
    said = tuple((words[at % len(words)], more[at % len(more)]) for at in range(count))
    return Ask(name=f"{first}+{second}", phrasings=said, met_by=(one, other))


ASKS = {
    ask.name: ask
    for ask in (
        *map(_baseline, ("short", "one_sentence", "list")),
        *(_own(name, like=name) for name in ("short", "one_sentence", "list")),
        _own("no_list", about="advice"),
        _own("lower"),
        _own("question"),
        _two("short", "question"),
        _two("one_sentence", "lower"),
        _two("list", "short"),
    )
}


# --- wordings


def said(text: str) -> str:
    """The user's own words."""
    return _sentence(text)


def heard(text: str) -> str:
    """The rule that the judge makes of them; the words themselves where it makes none."""
    hints = read(text, request="What is a comet?", reply="A comet is a small icy body that orbits the sun.").hints
    return next((_sentence(hint.text) for hint in hints if hint.kind == "rule"), _sentence(text))


def plain(text: str) -> str:
    """As it is served: a sentence with a measure where that is all that is asked, else the rule."""
    return wording(heard(text))


def _sentence(text: str) -> str:
    return text if text[-1] in ".!?…。！？" else f"{text}."


WORDINGS: dict[str, Callable[[str], str]] = {"said": said, "heard": heard, "plain": plain}


# --- places


def _user(text: str) -> Message:
    return Message(role="user", content=text)


def _exchange(message: str, notes: Sequence[str]) -> Prompt:
    """The notes as something that was said and agreed on before."""
    agreed = Message(role="assistant", content="Understood. I will do so in every answer.")
    return Prompt(messages=(_user(" ".join(notes)), agreed, _user(message)))


def _in_message(shape: str) -> Callable[[str, Sequence[str]], Prompt]:
    def place(message: str, notes: Sequence[str]) -> Prompt:
        listed = "\n".join(f"- {note}" for note in notes)
        return Prompt(messages=(_user(shape.format(message=message, notes=" ".join(notes), listed=listed)),))

    return place


def _system(message: str, notes: Sequence[str]) -> Prompt:
    return Prompt(messages=(Message(role="system", content=" ".join(notes)), _user(message)))


PLACES: dict[str, Callable[[str, Sequence[str]], Prompt]] = {
    "none": _in_message("{message}"),
    "before": _in_message("{notes}\n\n{message}"),
    "after": _in_message("{message}\n\n{notes}"),
    "inline": _in_message("{message} {notes}"),
    "both": _in_message("{notes}\n\n{message}\n\n{notes}"),
    "brackets": _in_message("{message}\n\n({notes})"),
    "keep": _in_message("{message}\n\nKeep in mind:\n{listed}"),
    "how": _in_message("{message}\n\nHow to answer: {notes}"),
    "labels": _in_message("Question: {message}\n\nInstruction: {notes}"),
    "lines": _in_message("{message}\n\n{listed}"),
    "exchange": _exchange,
    "system": _system,
}
VARIANTS = (
    "none:said before:said before:heard after:said after:heard after:plain inline:heard inline:plain both:heard"
    " both:plain brackets:heard keep:heard how:heard labels:heard exchange:heard"
)
"""what is measured where nothing else is asked for; after:plain is what is served and what teaches"""


def prompt_of(variant: str, message: str, notes: Sequence[str]) -> Prompt:
    """A message with notes, as a variant puts them."""
    place, _, wording = variant.partition(":")
    return PLACES[place](message, [WORDINGS[wording](note) for note in notes])


# --- measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one variant made of one ask. ``each`` has the share that does what each note wants, ``rate`` all at once."""

    rate: float
    each: tuple[float, ...]
    relevance: float
    words: float
    degenerate: int
    count: int
    shown: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        found = {"rate": self.rate, "relevance": self.relevance, "words": self.words}
        rounded = {name: round(value, 4) for name, value in found.items()}
        each = [round(one, 4) for one in self.each]
        return {**rounded, "each": each, "degenerate": self.degenerate, "count": self.count, "replies": self.shown}


def measured(ask: Ask, tasks: Sequence[Task], replies: Sequence[str]) -> Cell:
    """The shares of some replies; a degenerate one does nothing that a note wants."""
    pairs = list(zip(tasks, replies, strict=True))
    sound = [not is_degenerate(task, reply) for task, reply in pairs]
    met = [[check(reply) and ok for check in ask.met_by] for reply, ok in zip(replies, sound, strict=True)]
    count = len(pairs)
    return Cell(
        rate=sum(map(all, met)) / count,
        each=tuple(sum(column) / count for column in zip(*met, strict=True)),
        relevance=sum(is_relevant(task, reply) for task, reply in pairs) / count,
        words=sum(map(word_count, replies)) / count,
        degenerate=sound.count(False),
        count=count,
        shown=tuple(replies[:SHOWN]),
    )


def tasks_of(ask: Ask, count: int, seed: int, *, held_out: bool) -> list[Task]:
    """So many prompts, in the seed's order."""
    found = list((everyday.held_out if held_out else everyday.training)(ask.about))
    random.Random(f"places {seed}").shuffle(found)
    return found[:count]


class Meter:
    """Samples replies of the base model, so many at once."""

    def __init__(self, policy: Policy, config: Config, at_once: int) -> None:
        self._policy, self._sampling = policy, default_sampling(config)
        self._room = asyncio.Semaphore(at_once)

    async def cell(self, variant: str, ask: Ask, tasks: Sequence[Task], seed: int) -> tuple[list[Task], list[str]]:
        """The tasks and the replies to them."""
        given: dict[str, Any] = {**ask.sampling, "max_tokens": ask.max_tokens}
        sampling = replace(self._sampling, **given)
        prompts = [
            prompt_of(variant, task.prompt, ask.phrasings[at % len(ask.phrasings)]) for at, task in enumerate(tasks)
        ]
        work = [self._reply(one, replace(sampling, seed=1000 * seed + at)) for at, one in enumerate(prompts)]
        return list(tasks), list(await asyncio.gather(*work))

    async def _reply(self, prompt: Prompt, sampling: Sampling) -> str:
        async with self._room:
            done = await whole_reply(self._policy.generate(prompt, sampling))
        return done.reply.content


Found = dict[str, dict[str, Cell]]


def table(found: Found, asks: Sequence[Ask]) -> str:
    """A row a variant, a column an ask, and the mean rate and relevance of each variant."""
    lines: list[Sequence[str]] = [("variant", *(ask.name for ask in asks), "mean"), ("---",) * (len(asks) + 2)]
    for variant, cells in found.items():
        row = [cells[ask.name] for ask in asks]
        mean = [sum(values) / len(row) for values in zip(*((one.rate, one.relevance) for one in row), strict=True)]
        shown = (f"{one.rate:.2f}/{one.relevance:.2f}/{one.words:.0f}" for one in row)
        lines.append((variant, *shown, f"{mean[0]:.2f}/{mean[1]:.2f}"))
    return markdown(lines)


async def experiment(args: argparse.Namespace, config: Config, say: Callable[[str], None]) -> Found:
    asks, variants = [ASKS[name] for name in args.asks], list(args.variants)
    kept: dict[tuple[str, str], tuple[list[Task], list[str]]] = {}
    found: Found = {}
    async with running_policy(config) as policy:
        meter = Meter(policy, config, config.policy.max_batch)
        for seed in range(args.seeds):
            for variant in variants:
                began = time.monotonic()
                chosen = [tasks_of(ask, args.prompts, seed, held_out=args.held_out) for ask in asks]
                work = [meter.cell(variant, ask, tasks, seed) for ask, tasks in zip(asks, chosen, strict=True)]
                for ask, (tasks, replies) in zip(asks, await asyncio.gather(*work), strict=True):
                    old = kept.setdefault((variant, ask.name), ([], []))
                    old[0].extend(tasks)
                    old[1].extend(replies)
                found[variant] = {ask.name: measured(ask, *kept[variant, ask.name]) for ask in asks}
                rates = ", ".join(f"{name} {cell.rate:.2f}" for name, cell in found[variant].items())
                say(f"seed {seed} {variant}: {rates} ({time.monotonic() - began:.1f} s)")
                _write(args, found)
    return found


def _write(args: argparse.Namespace, found: Found) -> None:
    cells = {variant: {name: cell.plain() for name, cell in row.items()} for variant, row in found.items()}
    words = {ask: [[heard(one) for one in notes] for notes in ASKS[ask].phrasings] for ask in args.asks}
    text = json.dumps({"model": args.model, "seeds": args.seeds, "heard": words, "cells": cells}, indent=1)
    args.json.write_text(text + "\n", encoding="utf-8")


# --- the command


def _names(known: Sequence[str], what: str) -> Callable[[str], list[str]]:
    def read_names(text: str) -> list[str]:
        found = text.replace(",", " ").split()
        strange = [name for name in found if name not in known]
        if strange or not found:
            raise argparse.ArgumentTypeError(f"no {what} {', '.join(strange)}; there are: {', '.join(known)}")
        return found

    return read_names


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    every = [f"{place}:{wording}" for place in PLACES for wording in WORDINGS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="embedded", help="embedded, a Hugging Face id or a folder")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--prompts", type=int, default=40, help="prompts of each cell and seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds: other prompts, other samples")
    parser.add_argument("--held-out", action="store_true", help="held-out prompts, to confirm what was chosen")
    parser.add_argument("--asks", type=_names([*ASKS], "ask"), default=[*ASKS], help=f"some of {', '.join(ASKS)}")
    parser.add_argument(
        "--variants", type=_names(every, "variant"), default=VARIANTS.split(), help="PLACE:WORDING, with commas"
    )
    parser.add_argument("--json", type=Path, default=Path("note_place.json"), help="where everything is written")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting")
    return parser.parse_args(given)


def configure(args: argparse.Namespace) -> Config:
    """The preset of the embedded model, on the device that is asked for."""
    at_once = AT_ONCE["cuda" if args.device.startswith("cuda") else "cpu"]
    given = {
        "policy.model": args.model,
        "policy.device": args.device,
        "policy.max_batch": at_once,
        "policy.cache_tokens": 512 * at_once,
    }
    sets = [f"{name}={value}" for name, value in given.items()]
    return settings.load(preset="cpu-demo", sets=[*sets, *args.set]).config


def main() -> None:
    args = arguments()
    began = time.monotonic()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = asyncio.run(experiment(args, configure(args), say))
    print(table(found, [ASKS[name] for name in args.asks]))
    say(f"{time.monotonic() - began:.0f} s; everything is in {args.json}")


if __name__ == "__main__":
    main()
