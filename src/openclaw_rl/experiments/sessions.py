"""Simulated users over HTTP: they talk to the public API like any client.

turns = await run_sessions(client, user, range(12))      several sessions at once; every reply that was read
replies = await sample_replies(client, prompts, ...)     replies that nothing is learned from
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openclaw_rl.errors import BackendError
from openclaw_rl.experiments.users import SimulatedSession, SimulatedUser
from openclaw_rl.tasks.everyday import Task
from openclaw_rl.text import word_count

if TYPE_CHECKING:
    import httpx2

LAST_TOKENS = 2
"""the reply to a user's last message, which nobody reads, need not be long"""

ChatMessage = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTurn:
    """One reply that a user read: the message before it, the response to it, its version, whether it was met.

    ``round`` 0 is the first reply of a session, the one that a preference is measured on. ``turn`` is the server's id.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """What one chat completion brought."""

    text: str
    version: int
    turn: str
    seconds: float


OnTurn = Callable[[SimulatedTurn], None]
Rewrite = Callable[[str], str]
Ready = Callable[[], Awaitable[bool]]


async def at_once() -> bool:
    """Begin each session as soon as there is room for it."""
    return True


async def run_sessions(
    client: httpx2.AsyncClient,
    user: SimulatedUser,
    numbers: Iterable[int],
    *,
    concurrency: int = 4,
    named: bool = True,
    on_turn: OnTurn = lambda _: None,
    rewrite: Rewrite = str,
    ready: Ready = at_once,
) -> list[SimulatedTurn]:
    """Run the sessions of ``numbers``, ``concurrency`` at once; every reply that was read, in the order of reading.

    ``named`` sends a session's name and its end in headers; without it the client declares nothing. ``rewrite`` may
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


async def run_session(
    client: httpx2.AsyncClient,
    user: SimulatedUser,
    number: int,
    *,
    named: bool = True,
    on_turn: OnTurn = lambda _: None,
    rewrite: Rewrite = str,
) -> list[SimulatedTurn]:
    """Run one session from its opening to the user's last message."""
    session, turns = user.session(number), list[SimulatedTurn]()
    name = f"{user.name}-{user.preference.name}-{user.seed}-{number}"
    history: list[ChatMessage] = []
    message: str | None = rewrite(session.opening)
    while message is not None:
        history.append({"role": "user", "content": message})
        last = session.over
        reply = await complete(
            client,
            history,
            max_tokens=LAST_TOKENS if last else user.preference.max_tokens,
            sampling=user.preference.sampling,
            headers=_headers(name, last=last) if named else {},
            seed=_seed(name, len(turns)),
        )
        if last:
            break
        history.append({"role": "assistant", "content": reply.text})
        before, message = message, session.respond(reply.text)
        turns.append(_turn(user, session, name, len(turns), before, reply, message or ""))
        on_turn(turns[-1])
    return turns


def _headers(name: str, *, last: bool) -> dict[str, str]:
    """What a client declares that knows its sessions; nothing is learned from the reply to the last message."""
    marks = {"X-Session-Id": name, "X-Turn-Type": "main"}
    return marks | ({"X-Session-Done": "true", "x-openclaw-rl-train": "off"} if last else {})


def _turn(
    user: SimulatedUser,
    session: SimulatedSession,
    name: str,
    number: int,
    message: str,
    reply: ChatReply,
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
        version=reply.version,
        met=session.met,
        words=word_count(reply.text),
        seconds=reply.seconds,
        turn=reply.turn,
        task=session.task,
    )


async def sample_replies(
    client: httpx2.AsyncClient,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    sampling: Mapping[str, float] | None = None,
    concurrency: int = 8,
    seed: int = 0,
    model: str = "policy",
    on_reply: Callable[[int, ChatReply], None] = lambda _number, _reply: None,
) -> list[ChatReply]:
    """One reply to each prompt, ``concurrency`` at once, none of them learned from; in the order of the prompts."""
    room = asyncio.Semaphore(concurrency)

    async def one(number: int, prompt: str) -> ChatReply:
        async with room:
            reply = await complete(
                client,
                [{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
                sampling=sampling,
                headers={"x-openclaw-rl-train": "off"},
                seed=_seed(prompt, seed),
                model=model,
            )
        on_reply(number, reply)
        return reply

    async with asyncio.TaskGroup() as group:
        requests = [group.create_task(one(number, prompt)) for number, prompt in enumerate(prompts)]
    return [request.result() for request in requests]


def _seed(*what: object) -> int:
    """A seed that depends on all of ``what``, so that a request samples alike in every run."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:6], "big")


async def complete(
    client: httpx2.AsyncClient,
    messages: Sequence[ChatMessage],
    *,
    max_tokens: int,
    headers: dict[str, str],
    seed: int,
    sampling: Mapping[str, float] | None = None,
    model: str = "policy",
) -> ChatReply:
    """One chat completion; raises BackendError with the server's words for any refusal."""
    began = time.monotonic()
    body = {"model": model, "messages": list(messages), "max_tokens": max_tokens, "seed": seed, **(sampling or {})}
    done = await client.post("/v1/chat/completions", json=body, headers=headers)
    if done.status_code != 200:
        raise BackendError(f"POST {done.url}: status {done.status_code}: {done.text[:500]}")
    answer = done.json()
    return ChatReply(
        text=answer["choices"][0]["message"]["content"] or "",
        version=int(done.headers["x-openclaw-rl-version"]),
        turn=answer["id"],
        seconds=time.monotonic() - began,
    )
