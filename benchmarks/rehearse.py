"""Say it once: one note is rehearsed by the real train loop, gate and all, and what became of it on held-out prompts.

    python benchmarks/rehearse.py                                       `short` on this CPU, a few minutes
    python benchmarks/rehearse.py --preference list --seed 0 --device cuda
    python benchmarks/rehearse.py --preference short --then list        a second note after the first

No web server and no user: a note is written into a fresh ledger and the loop ticks until nothing moves. Held-out
prompts are on other topics than those that are rehearsed. One line of JSON with the figures goes to standard output:
rates before, with the note in the prompt (the prompted baseline), and after, without it; relevance, words, degenerate
replies, general ability, what the rehearsals measured, what the gate decided, seconds.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from openclaw_rl import config as settings
from openclaw_rl.app.factories import (
    build_policy,
    build_sample_settings,
    build_trainer,
    default_sampling,
    gate_limits,
)
from openclaw_rl.app.rehearsals import build_rehearsal
from openclaw_rl.config import Config
from openclaw_rl.experiments.metrics import HeldOutRates, measure
from openclaw_rl.experiments.users import user_tasks
from openclaw_rl.gate.ability import Quiz, margin, quizzes
from openclaw_rl.gate.examination import VersionGate
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.ports import Policy, SupportsCandidates, Trainer, whole_reply
from openclaw_rl.store import NotesLedger, TrainLedger
from openclaw_rl.tasks.preferences import PREFERENCES, Preference
from openclaw_rl.train.loop import Housekeeping, Review, TrainLoop
from openclaw_rl.train.queue import QueueSettings
from openclaw_rl.train.startup import RunOrigin
from openclaw_rl.types import Message, Prompt
from openclaw_rl.versions import RetentionPolicy, VersionManager

USER = "local"
AT_ONCE = 32


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--preference", choices=[*PREFERENCES], default="short", help="what the note asks")
    parser.add_argument("--then", choices=[*PREFERENCES], help="a second note, rehearsed after the first")
    parser.add_argument(
        "--note", help="the note in your own words; --preference then only says how replies are checked"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N, for policy and trainer")
    parser.add_argument("--model", default="embedded", help="embedded, a Hugging Face id or a folder")
    parser.add_argument("--probes", type=int, default=64, help="held-out prompts")
    parser.add_argument("--gate", choices=["on", "off"], default="on")
    parser.add_argument("--run", type=Path, help="a folder to keep the run in; not given: one that is removed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting")
    for name in ("steps", "batch", "prompts", "held_back", "replay", "loss", "teacher", "lr", "decay", "tokens"):
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=f"rehearse_{name}", help=f"train.rehearse.{name}")
    return parser.parse_args(given)


def configure(args: argparse.Namespace, folder: Path) -> Config:
    """The preset of the embedded model, with what the arguments change."""
    given = {
        "run.dir": folder,
        "run.seed": args.seed,
        "policy.model": args.model,
        "policy.device": args.device,
        "train.local.device": args.device,
        "train.rehearse.idle": 0,
    }
    for name, value in vars(args).items():
        if name.startswith("rehearse_") and value is not None:
            given[f"train.rehearse.{name.removeprefix('rehearse_')}"] = value
    sets = [f"{name}={value}" for name, value in given.items()]
    return settings.load(preset="cpu-demo", sets=[*sets, *args.set]).config


def build_loop(
    config: Config, ledger: TrainLedger, book: NotesBook, policy: Policy, trainer: Trainer, *, gate: bool
) -> TrainLoop:
    """The train loop as the app builds it."""

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
        replays=config.gate.replays,
        tokens=config.gate.tokens,
    )
    return TrainLoop(
        ledger,
        trainer,
        origin=RunOrigin(base=config.policy.model, directory=config.run.dir / "versions", resume=None),
        samples=build_sample_settings(config),
        queue=QueueSettings(
            batch_size=train.batch_size, max_wait=train.max_wait, idle=train.idle_wait, group_size=1, people=()
        ),
        review=Review(gate=examined if gate else None, monitor=None, retry=0.0),
        housekeeping=Housekeeping(retain=RetentionPolicy(keep=train.keep, interval=train.save_interval), recorder=None),
        pause_after=train.alarms.pause_after,
        rehearsal=build_rehearsal(config, book, borrowed, busy=lambda: False),
    )


async def rates(
    policy: Policy,
    config: Config,
    preference: Preference,
    args: argparse.Namespace,
    *,
    rewrite: Callable[[str], str] = str,
    version: int | None = None,
) -> HeldOutRates:
    """The held-out rates of a version, as the personal-agent benchmark measures them."""
    probes = user_tasks(preference, seed=args.seed, held=True)[: args.probes]
    of_user: dict[str, Any] = {**preference.sampling, "max_tokens": preference.max_tokens}
    sampling = replace(default_sampling(config), **of_user)
    room = asyncio.Semaphore(AT_ONCE)

    async def reply(at: int, text: str) -> str:
        prompt = Prompt(messages=(Message(role="user", content=rewrite(text)),))
        async with room:
            seeded = replace(sampling, seed=1000 * args.seed + at)
            done = await whole_reply(policy.generate(prompt, seeded, version=version))
        return done.reply.content

    said = await asyncio.gather(*(reply(at, task.prompt) for at, task in enumerate(probes)))
    return measure(preference, probes, said)


async def ability(policy: Policy) -> float:
    """The share of small questions whose right answer the live version finds likelier."""

    async def right(quiz: Quiz) -> bool:
        ids = await policy.encode(Prompt(messages=(Message(role="user", content=quiz.question),)))
        scores = {}
        for answer in quiz.answers:
            tokens = (await policy.tokenize(answer))[:-1]
            scores[answer] = statistics.fmean((await policy.score(ids, tokens)).logprobs)
        return margin(scores, quiz) > 0

    return statistics.fmean([await right(quiz) for quiz in quizzes()])


async def learn(loop: TrainLoop, say: Callable[[str], None]) -> float:
    """Tick until nothing moves; how long it took."""
    began = time.monotonic()
    while await loop.tick():
        status = (await loop.status())["rehearsal"]
        if status is not None:
            say(f"note {status['note']}: step {status['step']} of {status['of']}, KL {status['kl']}")
    return time.monotonic() - began


async def experiment(args: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    config = configure(args, folder)
    wanted = [PREFERENCES[name] for name in (args.preference, args.then) if name]
    policy, trainer = build_policy(config), build_trainer(config)
    await policy.start()
    ledger, notes = TrainLedger(folder / "ledger.db", sync="normal"), NotesLedger(folder / "ledger.db")
    versions, book = VersionManager(ledger), NotesBook(notes)
    found: dict[str, Any] = {"notes": []}
    try:
        loop = build_loop(config, ledger, book, policy, trainer, gate=args.gate == "on")
        await loop.tick()
        for preference in wanted:
            say(f"{preference.name}: {args.probes} held-out prompts, plain and with the note")
            before = await rates(policy, config, preference, args)
            prompted = await rates(policy, config, preference, args, rewrite=preference.prompted, version=0)
            able = await ability(policy)
            text = args.note if args.note and preference is wanted[0] else preference.hint
            note = book.add(NewNote(user=USER, text=text, by="user", reason="the benchmark")).note
            seconds = await learn(loop, say)
            await policy.load(versions.current())
            after = {one.name: (await rates(policy, config, one, args)).plain() for one in wanted}
            found["notes"].append(
                {
                    "preference": preference.name,
                    "before": before.plain(),
                    "prompted": prompted.plain(),
                    "after": after[preference.name],
                    "after_all": after,
                    "ability_before": able,
                    "ability_after": await ability(policy),
                    "state": book.note(note.number).state,
                    "reason": book.history(note.number)[-1].reason,
                    "rehearsals": [dict(row.evidence) for row in ledger.rehearsals(note.number)],
                    "learning_seconds": round(seconds, 1),
                }
            )
            if book.note(note.number).state != "learned":
                found["notes"][-1]["refused"] = await refused(policy, config, ledger, preference, args)
        found["live"] = versions.current().number
        found["gate"] = [
            {"version": one.version, "decision": one.decision, "reason": one.reason, "seconds": one.seconds}
            for version in versions.versions()
            for one in ledger.gate_decisions(version.number)
        ]
    finally:
        await trainer.stop()
        await policy.stop()
        ledger.close()
        notes.close()
    rehearse = config.train.rehearse.model_dump(mode="json") | {"lr": config.train.rehearsal_rate}
    return {"seed": args.seed, "device": args.device, "model": args.model, "rehearse": rehearse, **found}


async def refused(
    policy: Policy, config: Config, ledger: TrainLedger, preference: Preference, args: argparse.Namespace
) -> dict[str, Any] | None:
    """The held-out rates of the newest version, if the gate refused it and its weights are still there."""
    newest = VersionManager(ledger).versions()[-1]
    if newest.state != "refused" or not isinstance(policy, SupportsCandidates):
        return None
    await policy.admit(newest)
    found = await rates(policy, config, preference, args, version=newest.number)
    await policy.dismiss(newest.number)
    return found.plain()


def main() -> None:
    args = arguments()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.run or Path(temporary) / "run").absolute()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        result = asyncio.run(experiment(args, folder, say))
    print(json.dumps({**result, "seconds": round(time.monotonic() - began, 1)}), flush=True)


if __name__ == "__main__":
    main()
