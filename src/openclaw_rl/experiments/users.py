"""Simulated users: seeded, offline, and talking to the public API like any client.

    user = User(WISHES["short"], seed=3)
    session = user.session(0)                    the same seed and number always make the same session
    session.opening                              "What is a comet?"
    session.hear(reply)                          a complaint, thanks, or None when the user has left

A user asks one thing a session, complains in other words each time while the wish is not met, at most ``rounds`` times,
and thanks when it is; nobody thanks for a reply that is none at all, however it is shaped. `talk` drives sessions over
HTTP, several at once; `ask` asks without any of it being learned.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from openclaw_rl.errors import BackendError
from openclaw_rl.tasks import everyday
from openclaw_rl.tasks.everyday import Task
from openclaw_rl.tasks.preferences import About, Wish
from openclaw_rl.text import degenerate, word_count

if TYPE_CHECKING:
    import httpx2

SUMS = 8
"""one in so many tasks is a word problem, for wishes that these can show"""
CLOSING_TOKENS = 2
"""the reply to a user's last words, which nobody reads, need not be long"""

Message = dict[str, str]


class User:
    """Somebody with a wish. ``about`` narrows what is asked; ``rounds`` is how often a session complains at most."""

    def __init__(
        self, wish: Wish, *, seed: int = 0, name: str = "u1", rounds: int = 1, about: About | None = None
    ) -> None:
        self.wish, self.seed, self.name, self.rounds = wish, seed, name, rounds
        self._tasks = tasks(wish, seed=seed, about=about)

    def session(self, number: int) -> Session:
        """Session ``number``: what is asked and how is settled by the seed and the number alone."""
        draw = random.Random(f"{self.wish.name} {self.seed} {self.name} {number}")
        return Session(self.wish, self._tasks[number % len(self._tasks)], draw=draw, rounds=self.rounds)


class Session:
    """One conversation as its user lives it. ``met`` says whether the last reply heard was as wished."""

    def __init__(self, wish: Wish, task: Task, *, draw: random.Random, rounds: int) -> None:
        self.wish, self.task, self.rounds = wish, task, rounds
        self.opening = task.prompt
        self.met = False
        self.over = False
        self._draw = draw
        self._said: list[str] = []

    def hear(self, reply: str) -> str | None:
        """What the user says to a reply; None once they have said their last word (``over``)."""
        if self.over:
            return None
        self.met = as_wished(self.wish, self.task, reply)
        if self.met:
            self.over = True
            return self._draw.choice(self.wish.thanks)
        nonsense = _is_none(self.task, reply) or self.wish.spoilt(reply)
        self._said.append(self._complaint(self.wish.nonsense if nonsense else self.wish.complaints))
        self.over = len(self._said) >= self.rounds
        return self._said[-1]

    def _complaint(self, first: Sequence[str]) -> str:
        """Any phrasing at first; who has to say it again says it precisely, and never in the same words."""
        phrasings = self.wish.precise if self._said else first
        return self._draw.choice([one for one in phrasings if one not in self._said])


def as_wished(wish: Wish, task: Task, reply: str) -> bool:
    """Whether a reply is one and has the form that was wished: the same in a talk and in what is held out."""
    return wish.holds(reply) and not _is_none(task, reply)


def _is_none(task: Task, reply: str) -> bool:
    return degenerate(reply, figure=task.answer is not None) is not None


def tasks(wish: Wish, *, seed: int, held: bool = False, about: About | None = None) -> tuple[Task, ...]:
    """What there is to ask under a wish, in the seed's order; the held-out half shares nothing with the other."""
    kind = about or wish.about
    written = list((everyday.held_out if held else everyday.training)(kind))
    if wish.sums and kind == "everyday":
        written += everyday.sums(len(written) // (SUMS - 1), seed=0, held=held)
    random.Random(f"tasks {seed} {held}").shuffle(written)
    return tuple(written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One reply that a user read: what they had said, what came back, from which version, and whether it was met.

    ``round`` 0 is the first reply of a session, the one that a wish is measured on. ``answer`` is what the user said to
    the reply. ``turn`` is the server's id.
    """

    user: str
    wish: str
    session: str
    round: int
    said: str
    reply: str
    answer: str
    version: int
    met: bool
    words: int
    seconds: float
    turn: str
    task: Task = field(repr=False)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one request brought."""

    text: str
    version: int
    turn: str
    seconds: float


Heard = Callable[[Exchange], None]
Remember = Callable[[str], str]
Ready = Callable[[], Awaitable[bool]]


async def at_once() -> bool:
    """Begin each session as soon as there is room for it."""
    return True


async def talk(
    client: httpx2.AsyncClient,
    user: User,
    numbers: Iterable[int],
    *,
    together: int = 4,
    named: bool = True,
    heard: Heard = lambda _: None,
    remember: Remember = str,
    ready: Ready = at_once,
) -> list[Exchange]:
    """Hold the sessions of ``numbers``, ``together`` at once; every reply that was read, in the order of reading.

    ``named`` sends a session's name and its end in headers; without it the client says nothing. ``remember`` may
    change the opening message (a memory pasted into the prompt). ``ready`` is awaited before each session: False ends
    the talk, and waiting in it slows the users down.
    """
    waiting, told = iter(numbers), list[Exchange]()

    def hear(exchange: Exchange) -> None:
        told.append(exchange)
        heard(exchange)

    async def one_after_another() -> None:
        for number in waiting:
            if not await ready():
                return
            await converse(client, user, number, named=named, heard=hear, remember=remember)

    async with asyncio.TaskGroup() as group:
        for _ in range(together):
            group.create_task(one_after_another())
    return told


async def converse(
    client: httpx2.AsyncClient,
    user: User,
    number: int,
    *,
    named: bool = True,
    heard: Heard = lambda _: None,
    remember: Remember = str,
) -> list[Exchange]:
    """Hold one session from its opening to the user's last word."""
    session, told = user.session(number), list[Exchange]()
    name = f"{user.name}-{user.wish.name}-{user.seed}-{number}"
    history: list[Message] = []
    said: str | None = remember(session.opening)
    while said is not None:
        history.append({"role": "user", "content": said})
        last = session.over
        reply = await post(
            client,
            history,
            max_tokens=CLOSING_TOKENS if last else user.wish.room,
            asks=user.wish.asks,
            headers=_headers(name, last=last) if named else {},
            seed=_seed(name, len(told)),
        )
        if last:
            break
        history.append({"role": "assistant", "content": reply.text})
        asked, said = said, session.hear(reply.text)
        told.append(_exchange(user, session, name, len(told), asked, reply, said or ""))
        heard(told[-1])
    return told


def _headers(name: str, *, last: bool) -> dict[str, str]:
    """What a client says that knows its sessions; the reply to the last word is nobody's to learn from."""
    marks = {"X-Session-Id": name, "X-Turn-Type": "main"}
    return marks | ({"X-Session-Done": "true", "x-openclaw-rl-train": "off"} if last else {})


def _exchange(user: User, session: Session, name: str, number: int, said: str, reply: Reply, answer: str) -> Exchange:
    return Exchange(
        user=user.name,
        wish=user.wish.name,
        session=name,
        round=number,
        said=said,
        reply=reply.text,
        answer=answer,
        version=reply.version,
        met=session.met,
        words=word_count(reply.text),
        seconds=reply.seconds,
        turn=reply.turn,
        task=session.task,
    )


async def ask(
    client: httpx2.AsyncClient,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    asks: Mapping[str, float] | None = None,
    together: int = 8,
    seed: int = 0,
    model: str = "policy",
    heard: Callable[[int, Reply], None] = lambda _number, _reply: None,
) -> list[Reply]:
    """One reply to each prompt, ``together`` at once, none of them learned from; in the order of the prompts."""
    gate = asyncio.Semaphore(together)

    async def one(number: int, prompt: str) -> Reply:
        async with gate:
            said = [{"role": "user", "content": prompt}]
            reply = await post(
                client,
                said,
                max_tokens=max_tokens,
                asks=asks,
                headers={"x-openclaw-rl-train": "off"},
                seed=_seed(prompt, seed),
                model=model,
            )
        heard(number, reply)
        return reply

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(one(number, prompt)) for number, prompt in enumerate(prompts)]
    return [task.result() for task in asked]


def _seed(*what: object) -> int:
    """A seed that depends on all of ``what``, so that a request is drawn alike in every run."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:6], "big")


async def post(
    client: httpx2.AsyncClient,
    messages: Sequence[Message],
    *,
    max_tokens: int,
    headers: dict[str, str],
    seed: int,
    asks: Mapping[str, float] | None = None,
    model: str = "policy",
) -> Reply:
    """One chat completion; raises BackendError with the server's words for any refusal."""
    began = time.monotonic()
    body = {"model": model, "messages": list(messages), "max_tokens": max_tokens, "seed": seed, **(asks or {})}
    done = await client.post("/v1/chat/completions", json=body, headers=headers)
    if done.status_code != 200:
        raise BackendError(f"POST {done.url}: status {done.status_code}: {done.text[:500]}")
    answer = done.json()
    return Reply(
        text=answer["choices"][0]["message"]["content"] or "",
        version=int(done.headers["x-openclaw-rl-version"]),
        turn=answer["id"],
        seconds=time.monotonic() - began,
    )
