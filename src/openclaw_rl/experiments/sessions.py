"""Simulated users over HTTP: clients of the public API.

turns = await run_sessions(client, user, range(12))      several sessions at once; every reply that a user read
replies = await sample_replies(client, prompts, ...)     replies that train nothing
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openclaw_rl.tasks import everyday
from openclaw_rl.tasks.everyday import Task
from openclaw_rl.tasks.preferences import About, Preference
from openclaw_rl.text import degenerate, word_count
from openclaw_rl.types import Message, Prompt

if TYPE_CHECKING:
    from openclaw_rl.clients.api import ApiClient, ApiReply


# Simulated users: seeded and offline. Pure; `run_sessions` connects them to the public API.
#
#     user = SimulatedUser(PREFERENCES["short"], seed=3)
#     session = user.session(0)                    the same seed and number always make the same session
#     session.opening                              "What is a comet?"
#     session.respond(reply)                       a complaint, thanks, or None when the user has left
#
# A user asks one question per session, complains with varied wording while the preference is not met, at most
# ``rounds`` times, and gives thanks when it is; a degenerate reply never earns thanks, whatever its form.

WORD_PROBLEMS = 8
"""one in this many tasks is a word problem, for preferences that word problems can show"""


class SimulatedUser:
    """User with one preference; ``about`` narrows the tasks, ``rounds`` limits the complaints per session."""

    def __init__(
        self, preference: Preference, *, seed: int = 0, name: str = "u1", rounds: int = 1, about: About | None = None
    ) -> None:
        self.preference, self.seed, self.name, self.rounds = preference, seed, name, rounds
        self._tasks = user_tasks(preference, seed=seed, about=about)

    def session(self, number: int) -> SimulatedSession:
        """Return session ``number``, determined by the seed and the number alone."""
        rng = random.Random(f"{self.preference.name} {self.seed} {self.name} {number}")
        return SimulatedSession(self.preference, self._tasks[number % len(self._tasks)], rng=rng, rounds=self.rounds)


class SimulatedSession:
    """One conversation from its user's side; ``met`` is True if the last reply met the preference."""

    def __init__(self, preference: Preference, task: Task, *, rng: random.Random, rounds: int) -> None:
        self.preference, self.task, self.rounds = preference, task, rounds
        self.opening = task.prompt
        self.met = False
        self.over = False
        self._rng = rng
        self._complaints: list[str] = []

    def respond(self, reply: str) -> str | None:
        """Return the user's message after a reply; None after their last message (``over``)."""
        if self.over:
            return None
        self.met = meets(self.preference, self.task, reply)
        if self.met:
            self.over = True
            return self._rng.choice(self.preference.thanks)
        nonsense = is_degenerate(self.task, reply) or self.preference.empty_form(reply)
        first = self.preference.nonsense if nonsense else self.preference.complaints
        self._complaints.append(self._complaint(first))
        self.over = len(self._complaints) >= self.rounds
        return self._complaints[-1]

    def _complaint(self, first: Sequence[str]) -> str:
        """Choose any phrasing at first; then a precise one, without repetition while unused ones remain."""
        phrasings = self.preference.precise if self._complaints else first
        return self._rng.choice([phrasing for phrasing in phrasings if phrasing not in self._complaints] or phrasings)


def meets(preference: Preference, task: Task, reply: str) -> bool:
    """Return True if a reply meets the preference and is not degenerate, in sessions and on held-out prompts alike."""
    return preference.met_by(reply) and not is_degenerate(task, reply)


def is_degenerate(task: Task, reply: str) -> bool:
    """Return True if a reply to this task is degenerate; a bare figure answers a word problem."""
    return degenerate(reply, figure=task.answer is not None) is not None


def user_tasks(
    preference: Preference, *, seed: int, held: bool = False, about: About | None = None
) -> tuple[Task, ...]:
    """Return this user's tasks in the seed's order; the held-out half is disjoint from the training half."""
    kind = about or preference.about
    written = list((everyday.held_out if held else everyday.training)(kind))
    if preference.word_problems and kind == "everyday":
        written += everyday.word_problems(len(written) // (WORD_PROBLEMS - 1), seed=0, held=held)
    random.Random(f"tasks {seed} {held}").shuffle(written)
    return tuple(written)


LAST_TOKENS = 2
"""limit for the reply to a user's last message, which is not used"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTurn:
    """One reply that a user read, with the message before it, the response to it, its version and the result.

    ``round`` 0 is a session's first reply, on which the preference is measured. ``turn`` is the server's id.
    """

    user: str
    preference: str
    session: str
    round: int
    message: str
    reply: str
    response: str
    version: int
    met: bool
    words: int
    seconds: float
    turn: str
    task: Task = field(repr=False)


OnTurn = Callable[[SimulatedTurn], None]
Rewrite = Callable[[str], str]
Ready = Callable[[], Awaitable[bool]]


async def at_once() -> bool:
    """Start each session as soon as there is a free slot."""
    return True


async def run_sessions(
    client: ApiClient,
    user: SimulatedUser,
    numbers: Iterable[int],
    *,
    concurrency: int = 4,
    named: bool = True,
    on_turn: OnTurn = lambda _: None,
    rewrite: Rewrite = str,
    ready: Ready = at_once,
) -> list[SimulatedTurn]:
    """Run the sessions of ``numbers``, ``concurrency`` at once; return every reply that was read, in reading order.

    ``named`` sends a session's name and its end in headers; without it the client declares neither. ``rewrite`` may
    change the opening message (a memory pasted into the prompt). ``ready`` is awaited before each session: False ends
    the run, and waiting in it slows the users down.
    """
    waiting, turns = iter(numbers), list[SimulatedTurn]()

    def read(turn: SimulatedTurn) -> None:
        turns.append(turn)
        on_turn(turn)

    async def one_after_another() -> None:
        for number in waiting:
            if not await ready():
                return
            await run_session(client, user, number, named=named, on_turn=read, rewrite=rewrite)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(one_after_another())
    return turns


async def accept_proposed(client: ApiClient) -> int:
    """Accept each proposed note ("did you mean this for all replies?"); return the number of answers."""
    proposed = [note.number for note in await client.notes() if note.state == "proposed"]
    for number in proposed:
        await client.accept_note(number)
    return len(proposed)


async def run_session(
    client: ApiClient,
    user: SimulatedUser,
    number: int,
    *,
    named: bool = True,
    notes: bool = True,
    on_turn: OnTurn = lambda _: None,
    rewrite: Rewrite = str,
) -> list[SimulatedTurn]:
    """Run one session from its opening to the user's last message; ``notes`` puts standing notes into the prompts."""
    session, turns = user.session(number), list[SimulatedTurn]()
    name = f"{user.name}-{user.preference.name}-{user.seed}-{number}"
    history: list[Message] = []
    message: str | None = rewrite(session.opening)
    while message is not None:
        history.append(Message(role="user", content=message))
        last = session.over
        max_tokens = LAST_TOKENS if last else user.preference.max_tokens
        reply = await client.complete(
            Prompt(messages=tuple(history)),
            session=name if named else None,
            done=named and last,
            train=not (named and last),  # the reply to the last message trains nothing
            notes=notes,
            options={"max_tokens": max_tokens, "seed": _seed(name, len(turns)), **user.preference.sampling},
        )
        if last:
            break
        history.append(Message(role="assistant", content=reply.text))
        before, message = message, session.respond(reply.text)
        turns.append(_turn(user, session, name, len(turns), before, reply, message or ""))
        on_turn(turns[-1])
    return turns


def _turn(
    user: SimulatedUser,
    session: SimulatedSession,
    name: str,
    number: int,
    message: str,
    reply: ApiReply,
    response: str,
) -> SimulatedTurn:
    return SimulatedTurn(
        user=user.name,
        preference=user.preference.name,
        session=name,
        round=number,
        message=message,
        reply=reply.text,
        response=response,
        version=reply.own_version,
        met=session.met,
        words=word_count(reply.text),
        seconds=reply.seconds,
        turn=reply.turn,
        task=session.task,
    )


async def sample_replies(
    client: ApiClient,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    sampling: Mapping[str, float] | None = None,
    concurrency: int = 8,
    seed: int = 0,
    model: str | None = None,
    notes: bool = False,
    on_reply: Callable[[int, ApiReply], None] = lambda _number, _reply: None,
) -> list[ApiReply]:
    """Return one reply per prompt, in prompt order, ``concurrency`` at once; none of them trains.

    ``notes`` puts the user's standing notes into the prompts; without them the policy alone is measured.
    """
    room = asyncio.Semaphore(concurrency)
    named = {} if model is None else {"model": model}

    async def one(number: int, prompt: str) -> ApiReply:
        async with room:
            reply = await client.complete(
                Prompt(messages=(Message(role="user", content=prompt),)),
                train=False,
                notes=notes,
                options={"max_tokens": max_tokens, "seed": _seed(prompt, seed), **(sampling or {}), **named},
            )
        on_reply(number, reply)
        return reply

    async with asyncio.TaskGroup() as group:
        requests = [group.create_task(one(number, prompt)) for number, prompt in enumerate(prompts)]
    return [request.result() for request in requests]


def _seed(*what: object) -> int:
    """Return a seed that depends on all arguments, so that a request samples the same reply in every run."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:6], "big")
