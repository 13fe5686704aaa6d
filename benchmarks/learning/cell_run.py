"""One cell of the benchmark as a run of its own, in this process and through the public API.

Session follows session, and after each the loops work until nothing moves. So the figures depend on the seed, not on
how fast the machine is.
"""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.learning.cell_figures import (
    ability,
    added_tokens,
    notes_of,
    per_correction,
    prompted_notes,
    training_of,
)
from benchmarks.learning.cells import METHODS, NOTES, Cell
from openclaw_rl.app.application import LOOPS, App, full_batches_only
from openclaw_rl.config import Config, api_keys
from openclaw_rl.errors import ConfigError
from openclaw_rl.experiments.results import HeldOutRates, measure, relevance_kept, sessions_until
from openclaw_rl.experiments.sessions import (
    SimulatedTurn,
    SimulatedUser,
    accept_proposed,
    run_session,
    sample_replies,
    user_tasks,
)
from openclaw_rl.store import Writer
from openclaw_rl.tasks.preferences import PREFERENCES, About, Voice

if TYPE_CHECKING:
    from openclaw_rl.clients.api import ApiClient

_NEVER = 65536
"""turns in a batch that no run has"""
_REPLY = 512
"""tokens in the cache for each reply at once: conversations are short, and what memory is free is other cells' too"""
MEMORY = 3
"""corrections that the memory arm pastes into a prompt, the latest ones"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSetup:
    """What every cell has in common. ``sessions`` is the most a user has; a preference that is met ends it sooner.

    ``turns_train``: in the arms of notes turns take steps of their own as well, as they do in use.
    """

    config: Config
    directory: Path
    sessions: int
    probes: int
    rounds: int
    to_the_end: bool
    turns_train: bool = False
    voice: Voice | None = None


@dataclass(slots=True, kw_only=True)
class CellUser:
    """One user of a cell: their client, whether first replies met the preference, corrections so far, replies read.

    ``corrections`` are the different ones, ``complaints`` counts them all; ``added`` is how many tokens each opening
    prompt had beyond what the user typed.
    """

    user: SimulatedUser
    about: About | None
    client: ApiClient
    met: list[bool] = field(default_factory=list)
    corrections: list[str] = field(default_factory=list)
    complaints: int = 0
    added: list[int] = field(default_factory=list)
    turns: int = 0

    def remember(self, prompt: str) -> str:
        """The prompt with the latest corrections pasted behind it."""
        return "\n\n".join([prompt, " ".join(self.corrections[-MEMORY:])]) if self.corrections else prompt

    def read(self, turn: SimulatedTurn) -> None:
        """Take note of a reply."""
        self.turns += 1
        if turn.round == 0:
            self.met.append(turn.met)
        if turn.met:
            return
        self.complaints += 1
        if turn.response not in self.corrections:
            self.corrections.append(turn.response)


async def run_cell(setup: BenchmarkSetup, cell: Cell) -> dict[str, Any]:
    """One run from the base model to the end of its sessions."""
    began = time.monotonic()
    async with _running(setup, cell) as (app, users):
        before = [await _held_out(setup, cell, user, rewrite=str) for user in users]
        prompted = [await _held_out(setup, cell, user, rewrite=user.user.preference.prompted) for user in users]
        able = await ability(app.policy) if app.policy is not None else None
        await _sessions(setup, cell, app, users)
        after = before
        if cell.arm != "none":
            kept = cell.arm == "note"  # where notes are learned, what is asked for is the policy without them
            after = [await _held_out(setup, cell, user, rewrite=_rewrite(cell, user), notes=kept) for user in users]
        served = [await _served(setup, cell, app, user) for user in users]
        trained = cell.trains and app.policy is not None
        able_after = await ability(app.policy) if trained and app.policy is not None else able
        training = training_of(app.config) if trained else None
        notes = notes_of(app.config) if cell.arm in NOTES else None
    figures = list(zip(users, before, after, prompted, served, strict=True))
    return {
        "arm": cell.arm,
        "seed": cell.seed,
        "users": {one[0].user.preference.name: _figures(*one) for one in figures},
        "ability_before": able,
        "ability_after": able_after,
        "versions": training,
        "training_per_correction": per_correction(training, sum(user.complaints for user in users)),
        "notes": notes,
        "seconds": round(time.monotonic() - began, 1),
    }


def _figures(
    user: CellUser, before: HeldOutRates, after: HeldOutRates, prompted: HeldOutRates, served: HeldOutRates | None
) -> dict[str, Any]:
    return {
        "sessions": sessions_until(user.met),
        "turns": user.turns,
        "met": [int(one) for one in user.met],
        "corrections": user.complaints,
        "added_tokens": user.added,
        "before": before.plain(),
        "after": after.plain(),
        "prompted": prompted.plain(),
        "served": served.plain() if served is not None else None,
        "relevance_kept": relevance_kept(after, prompted),
    }


async def _served(setup: BenchmarkSetup, cell: Cell, app: App, user: CellUser) -> HeldOutRates | None:
    """The held-out rates as the user has them, notes and all; None where none is in their prompts any more."""
    if cell.arm != "note+distill" or not prompted_notes(app.config, user.user.name):
        return None
    return await _held_out(setup, cell, user, rewrite=str, notes=True)


async def _sessions(setup: BenchmarkSetup, cell: Cell, app: App, users: Sequence[CellUser]) -> None:
    for number in range(setup.sessions):
        for user in users:
            rewrite = _rewrite(cell, user)
            turns = await run_session(
                user.client, user.user, number, notes=cell.noted, on_turn=user.read, rewrite=rewrite
            )
            user.added.append(await added_tokens(app, turns[0]))
            if cell.arm in (*METHODS, *NOTES):
                await app.finish()
            if cell.arm in NOTES and await accept_proposed(user.client):
                await app.finish()
        if not setup.to_the_end and all(sessions_until(user.met) for user in users):
            return


def _rewrite(cell: Cell, user: CellUser) -> Callable[[str], str]:
    """How an arm changes a prompt."""
    return user.remember if cell.arm == "memory" else str


async def prompted_baseline(
    setup: BenchmarkSetup, users: Sequence[str], *, done: Callable[[str, HeldOutRates, HeldOutRates], None]
) -> dict[str, tuple[HeldOutRates, HeldOutRates]]:
    """The base model's rates for each user: plain, and with the preference in the prompt."""
    cell = Cell(arm="none", users=tuple(users), seed=setup.config.run.seed)
    found = {}
    async with _running(setup, cell) as (_app, seated):
        for name, user in zip(users, seated, strict=True):
            plain = await _held_out(setup, cell, user, rewrite=str)
            prompted = await _held_out(setup, cell, user, rewrite=user.user.preference.prompted)
            found[name] = (plain, prompted)
            done(name, plain, prompted)
    return found


async def _held_out(
    setup: BenchmarkSetup, cell: Cell, user: CellUser, *, rewrite: Callable[[str], str], notes: bool = False
) -> HeldOutRates:
    """The held-out rates of what is served now, each prompt as ``rewrite`` changes it."""
    preference = user.user.preference
    probes = user_tasks(preference, seed=cell.seed, held=True, about=user.about)[: setup.probes]
    replies = await sample_replies(
        user.client,
        [rewrite(task.prompt) for task in probes],
        max_tokens=preference.max_tokens,
        sampling=preference.sampling,
        concurrency=setup.config.policy.max_batch,
        seed=cell.seed,
        notes=notes,
    )
    return measure(preference, probes, [reply.text for reply in replies])


@asynccontextmanager
async def _running(setup: BenchmarkSetup, cell: Cell) -> AsyncIterator[tuple[App, list[CellUser]]]:
    """The app of a fresh run and a client for each of its users; the run's folder is removed at the end."""
    import httpx2

    from openclaw_rl.clients.api import ApiClient

    folder = setup.directory / re.sub(r"\W+", "-", cell.key)
    shutil.rmtree(folder, ignore_errors=True)
    config = cell_config(setup.config, cell, folder, turns_train=setup.turns_train)
    app = App(config, loops=_loops(cell))
    keys = {user: key for key, user in api_keys(config).items()}
    assert app.api is not None, "every arm serves"
    async with app.started(), AsyncExitStack() as stack:
        transport = httpx2.ASGITransport(app=app.api)
        users = []
        for number, name in enumerate(cell.users, 1):
            client = ApiClient("http://localhost/v1", key=keys[f"u{number}"], transport=transport)
            users.append(_cell_user(setup, cell, number, name, await stack.enter_async_context(client)))
        yield app, users
    shutil.rmtree(folder, ignore_errors=True)


def _loops(cell: Cell) -> Sequence[Writer]:
    if cell.trains:
        return LOOPS
    return ("serve", "collect", "judge") if cell.arm in NOTES else ("serve",)


def _cell_user(setup: BenchmarkSetup, cell: Cell, number: int, name: str, client: ApiClient) -> CellUser:
    known, about = parse_user(name)
    preference = PREFERENCES[known] if setup.voice is None else setup.voice.of(PREFERENCES[known])
    user = SimulatedUser(preference, seed=cell.seed, name=f"u{number}", rounds=setup.rounds, about=about)
    return CellUser(user=user, about=about, client=client)


def parse_user(name: str) -> tuple[str, About | None]:
    """A preference, or ``PREFERENCE:KIND`` for a user who asks only one kind of thing; raises ConfigError."""
    preference, _, kind = name.partition(":")
    if preference not in PREFERENCES:
        raise ConfigError(f"no simulated user {preference!r}", remedy=f"known: {', '.join(PREFERENCES)}")
    known: dict[str, About] = {"everyday": "everyday", "facts": "facts", "advice": "advice", "measures": "measures"}
    if kind and kind not in known:
        raise ConfigError(f"no kind of task {kind!r}", remedy=f"known: {', '.join(known)}")
    return preference, known.get(kind)


def cell_config(config: Config, cell: Cell, folder: Path, *, turns_train: bool = False) -> Config:
    """The settings of one cell: its own folder, seed, keys and method; a step only ever takes a full batch."""
    folder.mkdir(parents=True)
    keys = folder / "keys"
    keys.write_text("".join(f"u{n}:{secrets.token_urlsafe(16)}\n" for n in range(1, len(cell.users) + 1)))
    keys.chmod(0o600)
    method = {"method": cell.arm} if cell.arm in METHODS else {}
    cache = config.policy.cache_tokens or _REPLY * config.policy.max_batch
    changes: dict[str, dict[str, Any]] = {
        "policy": {"cache_tokens": cache},
        "run": {"dir": folder.absolute(), "seed": cell.seed},
        "serve": {"keys_file": keys, "api_key": None, "port": 0},
        "train": {**method, **_distillation(config, cell, turns_train=turns_train), "save_dir": None},
        "notes": {"enabled": cell.arm in NOTES},  # others are about what turns teach, or about a client's own memory
    }
    changed = {name: getattr(config, name).model_copy(update=update) for name, update in changes.items()}
    return full_batches_only(config.model_copy(update=changed))


def _distillation(config: Config, cell: Cell, *, turns_train: bool) -> dict[str, Any]:
    """In the arms of notes turns take no steps unless asked for, and what is distilled is distilled at once."""
    if cell.arm not in NOTES:
        return {
            "prompt_distillation": config.train.prompt_distillation.model_copy(update={"enabled": False}),
            "share": "all",
        }
    at_once = config.train.prompt_distillation.model_copy(update={"enabled": cell.trains, "idle": 0.0})
    shared = {} if cell.noted else {"share": "all"}  # with notes, users who share a policy keep theirs unless told
    turns = {} if turns_train else {"batch_size": _NEVER}
    return {"prompt_distillation": at_once, **turns, **shared}
