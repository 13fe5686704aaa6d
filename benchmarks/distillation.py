"""Say it once: one note is distilled by the real train loop, gate and all, and what became of it on held-out prompts.

    python benchmarks/distillation.py                                       `short` on this CPU, a few minutes
    python benchmarks/distillation.py --preference list --seed 0 --device cuda
    python benchmarks/distillation.py --preference short --then list        a second note after the first
    python benchmarks/distillation.py --preference list --then "Please answer in under 60 words."
    python benchmarks/distillation.py --nonsense                            a note that asks for nonsense
    python benchmarks/distillation.py --users one_sentence,long,list        a note each of three users of one policy
    python benchmarks/distillation.py --users one_sentence,list --set train.share=none    and who let no rule teach
    python benchmarks/distillation.py --users short,short --set train.share=none --also list,one_sentence
                                                                        and what others ask for in their prompts

No web server and no user: notes are written into a fresh ledger and the loop ticks until nothing moves. Held-out
prompts are on other topics than those that are distilled. One line of JSON with the figures goes to standard output:
rates of each preference before, with it in the prompt (the prompted baseline), and after each note, without notes and,
where a note stays, with it (``with_note``, with that of --also too);
relevance, words, degenerate replies, general ability, what became of each note and why, what the distillations measured
and where their seconds went, what the gate decided. ``obeyed`` counts replies that do what is asked, degenerate or not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from openclaw_rl import config as settings
from openclaw_rl.app.factories import (
    build_policy,
    build_sample_settings,
    build_trainer,
    default_sampling,
    gate_limits,
)
from openclaw_rl.app.notes import build_distillation
from openclaw_rl.config import Config
from openclaw_rl.experiments.results import measure
from openclaw_rl.experiments.sessions import user_tasks
from openclaw_rl.gate.examination import VersionGate
from openclaw_rl.gate.examiner import Quiz, margin, quizzes
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.ports import Policy, SupportsCandidates, Trainer, whole_reply
from openclaw_rl.preferences import checker_of
from openclaw_rl.store import NotesLedger, TrainLedger
from openclaw_rl.tasks.preferences import PREFERENCES, About, Preference
from openclaw_rl.text import word_count
from openclaw_rl.train.loop import Housekeeping, Review, TrainLoop
from openclaw_rl.train.queue import QueueSettings
from openclaw_rl.train.startup import RunOrigin
from openclaw_rl.types import Message, Prompt, Sampling
from openclaw_rl.versions import RetentionPolicy, VersionManager

USER = "local"
SHOWN = 3
"""replies of each measurement that are kept to read"""
AT_ONCE = 128
"""replies at once on a GPU"""
NONSENSE = Preference(
    name="nonsense",
    description="replies that say next to nothing: two words at most",
    hint="Please answer only with 'ok'.",
    met_by=lambda reply: word_count(reply) <= 2,
    vague=(),
    precise=(),
    thanks=(),
    nonsense=(),
)


_NAMES = ", ".join(PREFERENCES)


def _preferences(text: str) -> tuple[Preference, ...]:
    """By name; PREFERENCE:KIND is measured on prompts of that kind."""
    asked = [one.partition(":") for one in text.split(",")]
    strange = ["".join(one) for one in asked if one[0] not in PREFERENCES or (one[2] and one[2] not in get_args(About))]
    if strange:
        kinds = ", ".join(get_args(About))
        raise argparse.ArgumentTypeError(f"no {', '.join(strange)}; preferences: {_NAMES}; kinds: {kinds}")
    chosen = ((PREFERENCES[name], kind) for name, _, kind in asked)
    return tuple(replace(one, about=cast(About, kind) if kind else one.about) for one, kind in chosen)


def _asked(text: str) -> Preference:
    """A preference by its name; or a rule in words, if a program knows how to check it."""
    if text in PREFERENCES:
        return PREFERENCES[text]
    met_by = checker_of(text)
    if met_by is None:
        raise argparse.ArgumentTypeError(f"nothing can check {text!r}; give words, sentences, a list, or {_NAMES}")
    return replace(NONSENSE, name=text, description=text, hint=text, met_by=met_by, max_tokens=192)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--preference", type=_asked, metavar="P", default="short", help=f"what is asked: {_NAMES}, or your own words"
    )
    parser.add_argument("--then", type=_asked, metavar="P", help="a second note after the first, likewise")
    parser.add_argument(
        "--note", help="the note in your own words; --preference then only says how replies are checked"
    )
    parser.add_argument("--nonsense", action="store_true", help=f"the note is --note, or: {NONSENSE.hint}")
    parser.add_argument(
        "--users", type=_preferences, metavar="P,Q:KIND,…", help="a note each of so many users, all at once"
    )
    parser.add_argument(
        "--also", type=_preferences, metavar="P,Q", default=(), help="nobody's notes; measured with them in the prompt"
    )
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="stop learning then, and measure what there is")
    parser.add_argument("--json", type=Path, help="a file for the figures as well")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N, for policy and trainer")
    parser.add_argument("--model", default="embedded", help="embedded, a Hugging Face id or a folder")
    parser.add_argument("--probes", type=int, default=64, help="held-out prompts")
    parser.add_argument("--gate", choices=["on", "off"], default="on")
    parser.add_argument("--run", type=Path, help="a folder to keep the run in; not given: one that is removed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting")
    sizes, how = (
        ("steps", "batch", "prompts", "held_back", "tokens"),
        ("loss", "reward", "replay", "teacher", "lr", "decay"),
    )
    for name in (*sizes, *how):
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=f"distillation_{name}", help=f"train.prompt_distillation.{name}")
    return parser.parse_args(given)


def configure(args: argparse.Namespace, folder: Path) -> Config:
    """The preset of the embedded model, with what the arguments change."""
    given = {
        "run.dir": folder,
        "run.seed": args.seed,
        "policy.model": args.model,
        "policy.device": args.device,
        "train.local.device": args.device,
        "train.prompt_distillation.idle": 0,
    }
    if args.device.startswith("cuda"):
        given |= {"policy.max_batch": AT_ONCE, "policy.cache_tokens": 512 * AT_ONCE}
    if args.users:
        given["train.share"] = "all"
    for name, value in vars(args).items():
        if name.startswith("distillation_") and value is not None:
            given[f"train.prompt_distillation.{name.removeprefix('distillation_')}"] = value
    sets = [f"{name}={value}" for name, value in given.items()]
    return settings.load(preset="cpu-demo", sets=[*sets, *args.set]).config


def build_loop(
    config: Config,
    ledger: TrainLedger,
    book: NotesBook,
    policy: Policy,
    trainer: Trainer,
    *,
    gate: bool,
    people: tuple[str, ...],
) -> TrainLoop:
    """The train loop as the app builds it, for these people."""

    async def borrowed() -> Policy:
        return policy

    train = config.train
    examined = VersionGate(
        ledger,
        borrowed,
        limits=gate_limits(config),
        sampling=default_sampling(config),
        user_score=lambda _case: None,
        probes=config.gate.probes,
        distillation_probes=config.gate.distillation_probes,
        replays=config.gate.replays,
        tokens=config.gate.tokens,
        tasks=None,
    )
    return TrainLoop(
        ledger,
        trainer,
        origin=RunOrigin(base=config.policy.model, directory=config.run.dir / "versions", resume=None),
        samples=build_sample_settings(config),
        queue=QueueSettings(
            batch_size=train.batch_size,
            max_wait=train.max_wait,
            group_wait=train.max_wait,
            verdict_wait=train.max_wait,
            idle=train.idle_wait,
            group_size=1,
            patience=0.0,
            people=people,
        ),
        review=Review(gate=examined if gate else None, monitor=None, retry=0.0),
        housekeeping=Housekeeping(retain=RetentionPolicy(keep=train.keep, interval=train.save_interval), recorder=None),
        pause_after=train.alarms.pause_after,
        distillation=build_distillation(config, book, borrowed, busy=lambda: False),
    )


def sampling_of(config: Config, preference: Preference) -> Sampling:
    """How replies to a user with this preference are sampled."""
    of_user: dict[str, Any] = {**preference.sampling, "max_tokens": preference.max_tokens}
    return replace(default_sampling(config), **of_user)


class Meter:
    """Held-out replies of versions, as the personal-agent benchmark measures them; many at once."""

    def __init__(self, policy: Policy, config: Config, args: argparse.Namespace) -> None:
        self._policy, self._config = policy, config
        self._seed, self._probes = args.seed, args.probes
        self._room = asyncio.Semaphore(config.policy.max_batch)

    async def rates(self, preferences: Sequence[Preference], *, version: int | None = None) -> dict[str, Any]:
        """By preference, the rates of a version (None: the live one) without notes."""
        found = await asyncio.gather(*(self._rates(one, str, version) for one in preferences))
        return {one.name: row for one, row in zip(preferences, found, strict=True)}

    async def prompted(self, preferences: Sequence[Preference], *, version: int | None = 0) -> dict[str, Any]:
        """The same with the preference in the prompt, of the base model if no other version is given."""
        found = await asyncio.gather(*(self._rates(one, one.prompted, version) for one in preferences))
        return {one.name: row for one, row in zip(preferences, found, strict=True)}

    async def _rates(self, preference: Preference, rewrite: Callable[[str], str], version: int | None) -> Any:
        probes = user_tasks(preference, seed=self._seed, held=True)[: self._probes]
        sampling = sampling_of(self._config, preference)

        async def reply(at: int, text: str) -> str:
            prompt = Prompt(messages=(Message(role="user", content=rewrite(text)),))
            async with self._room:
                seeded = replace(sampling, seed=1000 * self._seed + at)
                done = await whole_reply(self._policy.generate(prompt, seeded, version=version))
            return done.reply.content

        said = await asyncio.gather(*(reply(at, task.prompt) for at, task in enumerate(probes)))
        obeyed = sum(map(preference.met_by, said)) / len(said)
        return {**measure(preference, probes, said).plain(), "obeyed": round(obeyed, 4), "replies": said[:SHOWN]}

    async def ability(self) -> float:
        """The share of small questions whose right answer the live version finds likelier."""

        async def right(quiz: Quiz) -> bool:
            ids = await self._policy.encode(Prompt(messages=(Message(role="user", content=quiz.question),)))
            scores = {}
            for answer in quiz.answers:
                tokens = (await self._policy.tokenize(answer))[:-1]
                scores[answer] = statistics.fmean((await self._policy.score(ids, tokens)).logprobs)
            return margin(scores, quiz) > 0

        return statistics.fmean(await asyncio.gather(*map(right, quizzes())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A note that is to be taught, of whom, and how replies are checked."""

    user: str
    text: str
    preference: Preference


def script(args: argparse.Namespace) -> list[list[Said]]:
    """What is said: notes that come together, and after these are learned the next."""
    if args.nonsense:
        asked = replace(NONSENSE, hint=args.note or NONSENSE.hint)
        return [[Said(user=USER, text=asked.hint, preference=asked)]]
    if args.users:
        return [[Said(user=f"u{at}", text=one.hint, preference=one) for at, one in enumerate(args.users, 1)]]
    first = args.preference
    found = [[Said(user=USER, text=args.note or first.hint, preference=first)]]
    return [*found, *([[Said(user=USER, text=args.then.hint, preference=args.then)]] if args.then else [])]


async def learn(loop: TrainLoop, say: Callable[[str], None], until: float | None) -> dict[str, Any]:
    """Tick until nothing moves, or until then; how long it took."""
    began = time.monotonic()
    while await loop.tick():
        status = (await loop.status())["distillation"]
        if status is not None:
            say(f"note {status['note']}: step {status['step']} of {status['of']}, KL {status['kl']}")
        if until is not None and time.monotonic() > until:
            return {"learning_seconds": round(time.monotonic() - began, 1), "cut_off": True}
    return {"learning_seconds": round(time.monotonic() - began, 1), "cut_off": False}


class Experiment:
    """One run: what is said, taught, and what became of it."""

    def __init__(self, args: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> None:
        self.args, self.say = args, say
        self.config = configure(args, folder)
        self.groups = script(args)
        self.wanted = [*(one.preference for group in self.groups for one in group), *args.also]
        self.policy, self.trainer = build_policy(self.config), build_trainer(self.config)
        self.ledger = TrainLedger(folder / "ledger.db", sync="normal")
        self.notes = NotesLedger(folder / "ledger.db")
        self.versions, self.book = VersionManager(self.ledger), NotesBook(self.notes)
        self.meter = Meter(self.policy, self.config, args)
        self.until = time.monotonic() + args.limit if args.limit else None

    async def run(self) -> dict[str, Any]:
        """The figures."""
        try:
            await self.policy.start()
            loop = build_loop(
                self.config,
                self.ledger,
                self.book,
                self.policy,
                self.trainer,
                gate=self.args.gate == "on",
                people=tuple({one.user for group in self.groups for one in group}),
            )
            await loop.tick()
            self.say(f"{self.args.probes} held-out prompts each: the base model, plain and prompted")
            before, prompted = await asyncio.gather(self.meter.rates(self.wanted), self.meter.prompted(self.wanted))
            able = await self.meter.ability()
            found = [await self._teach(loop, group) for group in self.groups]
            return {
                "before": before,
                "prompted": prompted,
                "ability_before": able,
                "taught": found,
                "live": self.versions.current().number,
                "gate": self._decisions(),
            }
        finally:
            await self.trainer.stop()
            await self.policy.stop()
            self.ledger.close()
            self.notes.close()

    async def _teach(self, loop: TrainLoop, group: Sequence[Said]) -> dict[str, Any]:
        """Add notes, let them be learned, and measure every preference of the run."""
        added = [
            self.book.add(NewNote(user=one.user, text=one.text, by="user", reason="the benchmark")).note
            for one in group
        ]
        spent = await learn(loop, self.say, self.until)
        await self.policy.load(self.versions.current())
        self.say("held-out prompts again")
        stay = [one.preference for one, note in zip(group, added, strict=True) if self.book.note(note.number).prompted]
        after, with_note, able = await asyncio.gather(
            self.meter.rates(self.wanted),
            self.meter.prompted([*stay, *self.args.also], version=None),
            self.meter.ability(),
        )
        return {
            "notes": [self._became(note.number) for note in added],
            "after": after,
            "with_note": with_note,
            "ability_after": able,
            "refused": await self._refused(),
            **spent,
        }

    def _became(self, number: int) -> dict[str, Any]:
        note = self.book.note(number)
        return {
            "number": number,
            "user": note.user,
            "text": note.text,
            "state": note.state,
            "reason": self.book.history(number)[-1].reason,
            "distillations": [dict(row.evidence) for row in self.ledger.distillations(number)],
        }

    def _decisions(self) -> list[dict[str, Any]]:
        return [
            {"version": one.version, "decision": one.decision, "reason": one.reason, "seconds": one.seconds}
            for version in self.versions.versions()
            for one in self.ledger.gate_decisions(version.number)
        ]

    async def _refused(self) -> dict[str, Any] | None:
        """The held-out rates of the newest version, if the gate refused it and its weights are still there."""
        newest = self.versions.versions()[-1]
        if newest.state != "refused" or not isinstance(self.policy, SupportsCandidates):
            return None
        await self.policy.admit(newest)
        found = await self.meter.rates(self.wanted, version=newest.number)
        await self.policy.dismiss(newest.number)
        return found


async def experiment(args: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures of a run, with its settings."""
    run = Experiment(args, folder, say)
    distill = run.config.train.prompt_distillation.model_dump(mode="json") | {"lr": run.config.train.distillation_rate}
    found = await run.run()
    return {"seed": args.seed, "device": args.device, "model": args.model, "distill": distill, **found}


def main() -> None:
    args = arguments()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s")

    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.run or Path(temporary) / "run").absolute()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        result = asyncio.run(experiment(args, folder, say))
    text = json.dumps({**result, "seconds": round(time.monotonic() - began, 1)})
    print(text, flush=True)
    if args.json is not None:
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
