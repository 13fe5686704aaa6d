"""The personal-agent benchmark: how many sessions until a user's wish holds, for every method, on any config.

Each cell (an arm, its users, a seed) is a run of its own, in this process and through the public API: session after
session, and after each the loops work until nothing moves. So the figures depend on the seed, not on how fast the
machine is. Finished cells are kept in the JSON file, and a second start goes on with those that are missing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl import files
from openclaw_rl.app.application import LOOPS, App, ledger_path, patient
from openclaw_rl.config import Config, api_keys
from openclaw_rl.errors import ConfigError
from openclaw_rl.experiments import charts as pictures
from openclaw_rl.experiments.personal import ARMS, METHODS, Cell, Measured, kept, measure, sessions_until, summary
from openclaw_rl.experiments.users import Exchange, User, ask, converse, tasks
from openclaw_rl.gate.ability import Quiz, margin, quizzes
from openclaw_rl.ports import Policy
from openclaw_rl.processes import end_with_parent
from openclaw_rl.store import Ledger
from openclaw_rl.tasks.preferences import WISHES, About
from openclaw_rl.types import Message, Prompt

if TYPE_CHECKING:
    import httpx2

NOTES = 3
"""corrections that the memory arm pastes into a prompt, the latest ones"""

Heard = Callable[[Cell, Exchange], None]
Done = Callable[[Cell, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every cell has in common. ``sessions`` is the most a user has; a wish that holds ends the cell sooner."""

    config: Config
    directory: Path
    sessions: int = 32
    probes: int = 20
    rounds: int = 1
    to_the_end: bool = False


@dataclass(slots=True, kw_only=True)
class Seat:
    """One user of a cell: their client, what was heard of the wish, what a memory would have noted, replies read."""

    user: User
    about: About | None
    client: httpx2.AsyncClient
    met: list[bool] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    turns: int = 0

    def remember(self, prompt: str) -> str:
        """The prompt with the latest corrections pasted behind it."""
        return "\n\n".join([prompt, " ".join(self.notes[-NOTES:])]) if self.notes else prompt

    def heard(self, exchange: Exchange) -> None:
        self.turns += 1
        if exchange.round == 0:
            self.met.append(exchange.met)
        if not exchange.met and exchange.answer not in self.notes:
            self.notes.append(exchange.answer)


async def run(
    setup: Setup,
    wanted: Sequence[Cell],
    file: Path | None,
    *,
    done: Callable[[Cell, Mapping[str, Any]], None],
    heard: Heard,
    jobs: int = 1,
) -> dict[str, Any]:
    """Run the cells that ``file`` does not hold yet; all results, written to it after every cell.

    With several ``jobs`` so many cells run at once, each in a process of its own, whose talk is not heard here.
    """
    book = read(file, setup)
    found: dict[str, Any] = book["cells"]
    for cell in wanted:
        if cell.key in found:
            done(cell, found[cell.key])
    missing = [cell for cell in wanted if cell.key not in found]
    order = [*found, *(cell.key for cell in missing)]
    async for cell, result in _results(setup, missing, heard, jobs):
        found[cell.key] = result
        book["cells"] = {key: found[key] for key in order if key in found}
        book["summary"] = summary(book["cells"], sessions=setup.sessions)
        if file is not None:
            await asyncio.to_thread(write, file, book)
        done(cell, result)
    return book


async def _results(
    setup: Setup, cells: Sequence[Cell], heard: Heard, jobs: int
) -> AsyncIterator[tuple[Cell, dict[str, Any]]]:
    """The cells with their results, as they come."""
    if jobs == 1:
        for cell in cells:
            yield cell, await run_cell(setup, cell, heard=heard)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=end_with_parent) as pool:
        waiting = [asyncio.wrap_future(pool.submit(_run_cell_here, setup, cell)) for cell in cells]
        try:
            for coming in asyncio.as_completed(waiting):
                yield await coming
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run_cell_here(setup: Setup, cell: Cell) -> tuple[Cell, dict[str, Any]]:
    return cell, asyncio.run(run_cell(setup, cell))


def read(file: Path | None, setup: Setup) -> dict[str, Any]:
    """The results so far; raises ConfigError when they were made with another setup, or with code that has changed."""
    same = {"sessions": setup.sessions, "probes": setup.probes, "rounds": setup.rounds, "to_the_end": setup.to_the_end}
    same_settings = setup.config.model_dump(mode="json", include={"policy", "judge", "train", "gate", "monitor"})
    same_settings["train"].pop("method")
    if file is None or not file.exists():
        start = {"command": "bench personal", "code": code(), "setup": same, "settings": same_settings}
        return {**start, "cells": {}, "summary": []}
    book: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if book.get("setup") != same or book.get("settings", book.get("settings")) != same_settings:
        raise ConfigError(f"{file} holds results of other settings", remedy="give another --json, or the same settings")
    if book.get("code") != code():
        raise ConfigError(f"{file} holds results of other code", remedy="give another --json: users or gate may differ")
    return book


def code(root: Path = Path(__file__).parent) -> str:
    """A digest of the package's files: what two states of the code have measured is not one benchmark."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]


def write(file: Path, book: Mapping[str, Any]) -> None:
    """Write a report whole or not at all; each part of a part, such as a cell, has a line to itself."""
    parts = ",\n".join(f"{_line(name)}: {_lines(part)}" for name, part in book.items())
    files.write(file, f"{{\n{parts}\n}}\n")


def _lines(part: object) -> str:
    if isinstance(part, Mapping) and part:
        return "{\n" + ",\n".join(f" {_line(name)}: {_line(one)}" for name, one in part.items()) + "\n}"
    if isinstance(part, list) and part:
        return "[\n" + ",\n".join(f" {_line(one)}" for one in part) + "\n]"
    return _line(part)


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


async def run_cell(setup: Setup, cell: Cell, *, heard: Heard = lambda _cell, _exchange: None) -> dict[str, Any]:
    """One run from the base model to the end of its sessions."""
    began = time.monotonic()
    async with _seated(setup, cell) as (app, seats):
        before = [await _held_out(setup, cell, seat, say=str) for seat in seats]
        hinted = [await _held_out(setup, cell, seat, say=seat.user.wish.say) for seat in seats]
        sure = await ability(app.policy) if app.policy is not None else None
        for number in range(setup.sessions):
            for seat in seats:
                await _session(app, cell, seat, number, heard)
            if not setup.to_the_end and all(sessions_until(seat.met) for seat in seats):
                break
        after = before
        if cell.arm != "none":
            after = [await _held_out(setup, cell, seat, say=_paste(cell, seat)) for seat in seats]
        trained = cell.arm in METHODS and app.policy is not None
        now = await ability(app.policy) if trained and app.policy is not None else sure
        versions = _versions(app) if trained else None
    users = {
        seat.user.wish.name: {
            "sessions": sessions_until(seat.met),
            "turns": seat.turns,
            "met": [int(one) for one in seat.met],
            "before": old.plain(),
            "after": new.plain(),
            "told": said.plain(),
            "sense_kept": kept(new, said),
        }
        for seat, old, new, said in zip(seats, before, after, hinted, strict=True)
    }
    return {
        "arm": cell.arm,
        "seed": cell.seed,
        "users": users,
        "ability_before": sure,
        "ability_after": now,
        "versions": versions,
        "seconds": round(time.monotonic() - began, 1),
    }


async def _session(app: App, cell: Cell, seat: Seat, number: int, heard: Heard) -> None:
    def both(exchange: Exchange) -> None:
        seat.heard(exchange)
        heard(cell, exchange)

    await converse(seat.client, seat.user, number, heard=both, remember=_paste(cell, seat))
    if cell.arm in METHODS:
        await app.finish()


def _paste(cell: Cell, seat: Seat) -> Callable[[str], str]:
    """How an arm puts a prompt."""
    return seat.remember if cell.arm == "memory" else str


async def told(
    setup: Setup, users: Sequence[str], *, done: Callable[[str, Measured, Measured], None]
) -> dict[str, tuple[Measured, Measured]]:
    """How often the base does as each user wishes: plain, and with the wish said in the prompt."""
    cell = Cell(arm="none", users=tuple(users), seed=setup.config.run.seed)
    found = {}
    async with _seated(setup, cell) as (_app, seats):
        for spoken, seat in zip(users, seats, strict=True):
            plain = await _held_out(setup, cell, seat, say=str)
            hinted = await _held_out(setup, cell, seat, say=seat.user.wish.say)
            found[spoken] = (plain, hinted)
            done(spoken, plain, hinted)
    return found


async def _held_out(setup: Setup, cell: Cell, seat: Seat, *, say: Callable[[str], str]) -> Measured:
    """The held-out rate as it would be served now, each prompt as ``say`` puts it."""
    wish = seat.user.wish
    probes = tasks(wish, seed=cell.seed, held=True, about=seat.about)[: setup.probes]
    prompts = [say(task.prompt) for task in probes]
    most = setup.config.policy.max_batch
    replies = await ask(seat.client, prompts, max_tokens=wish.room, asks=wish.asks, together=most, seed=cell.seed)
    return measure(wish, probes, [reply.text for reply in replies])


def _versions(app: App) -> dict[str, Any]:
    """What became of the versions of a run, and why its training was paused, if it was."""
    with Ledger(ledger_path(app.config)) as reader:
        every = sum(version.number > 0 for version in reader.versions())
        refused, back = len(reader.ever("refused")), len(reader.ever("rolled back"))
        counts, paused = reader.counts(), reader.paused()
    made = {"promoted": every - refused, "refused": refused, "rolled_back": back}
    return made | {"steps": counts["steps"], "trained": counts["trained"], "paused": paused}


# --- a cell's run ---


@asynccontextmanager
async def _seated(setup: Setup, cell: Cell) -> AsyncIterator[tuple[App, list[Seat]]]:
    """The app of a fresh run and a client for each of its users; the run's folder is removed at the end."""
    import httpx2

    folder = setup.directory / re.sub(r"\W+", "-", cell.key)
    shutil.rmtree(folder, ignore_errors=True)
    config = cell_config(setup.config, cell, folder)
    app = App(config, loops=LOOPS if cell.arm in METHODS else ("serve",))
    keys = {user: key for key, user in api_keys(config).items()}
    assert app.api is not None, "every arm serves"
    async with app.started(), AsyncExitStack() as stack:
        transport = httpx2.ASGITransport(app=app.api)
        seats = []
        for number, spoken in enumerate(cell.users, 1):
            headers = {"authorization": f"Bearer {keys[f'u{number}']}"}
            client = httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers, timeout=None)
            seats.append(_seat(setup, cell, number, spoken, await stack.enter_async_context(client)))
        yield app, seats
    shutil.rmtree(folder, ignore_errors=True)


def _seat(setup: Setup, cell: Cell, number: int, spoken: str, client: httpx2.AsyncClient) -> Seat:
    wish, about = spoken_for(spoken)
    user = User(WISHES[wish], seed=cell.seed, name=f"u{number}", rounds=setup.rounds, about=about)
    return Seat(user=user, about=about, client=client)


def spoken_for(spoken: str) -> tuple[str, About | None]:
    """A wish, or ``WISH:KIND`` where the user asks only things of one kind; raises ConfigError for others."""
    name, _, kind = spoken.partition(":")
    if name not in WISHES:
        raise ConfigError(f"no simulated user {name!r}", remedy=f"known: {', '.join(WISHES)}")
    known: dict[str, About] = {"everyday": "everyday", "facts": "facts", "advice": "advice", "measures": "measures"}
    if kind and kind not in known:
        raise ConfigError(f"no kind of task {kind!r}", remedy=f"known: {', '.join(known)}")
    return name, known.get(kind)


def cell_config(config: Config, cell: Cell, folder: Path) -> Config:
    """The settings of one cell: its own folder, seed, keys and method; a step only ever takes a full batch."""
    folder.mkdir(parents=True)
    keys = folder / "keys"
    keys.write_text("".join(f"u{n}:{secrets.token_urlsafe(16)}\n" for n in range(1, len(cell.users) + 1)))
    keys.chmod(0o600)
    method = {"method": cell.arm} if cell.arm in METHODS else {}
    changes: dict[str, dict[str, Any]] = {
        "run": {"dir": folder, "seed": cell.seed},
        "serve": {"keys_file": keys, "api_key": None, "port": 0},
        "train": {**method, "save_dir": None, "share": "all"},
    }
    changed = {name: getattr(config, name).model_copy(update=update) for name, update in changes.items()}
    return patient(config.model_copy(update=changed))


async def ability(policy: Policy) -> float:
    """General ability of the live version: the share of small tasks whose right answer it finds the likeliest."""
    room = asyncio.Semaphore(8)

    async def right(quiz: Quiz) -> bool:
        async with room:
            ids = await policy.encode(Prompt(messages=(Message(role="user", content=quiz.question),)))
            scores = {}
            for answer in quiz.answers:
                tokens = (await policy.tokenize(answer))[:-1]
                scores[answer] = statistics.fmean((await policy.score(ids, tokens)).logprobs)
            return margin(scores, quiz) > 0

    return statistics.fmean(await asyncio.gather(*map(right, quizzes())))


def picture(book: Mapping[str, Any]) -> str:
    """Sessions until the wish holds, by user and arm, as SVG."""
    groups: dict[str, dict[str, tuple[float, float]]] = {}
    order = [*ARMS, *METHODS]
    for row in sorted(book["summary"], key=lambda row: order.index(row["arm"])):
        alone = row["group"] == row["user"]
        name = row["user"] if alone else f"{row['user']} (of {row['group'].count('+') + 1})"
        sessions = row["sessions"]
        groups.setdefault(name, {})[row["arm"]] = (sessions["mean"], sessions["deviation"])
    most = book["setup"]["sessions"]
    title = f"sessions until the wish held 3 times in a row (at most {most}; mean and deviation over seeds)"
    return pictures.bars(title, groups, y="sessions")
