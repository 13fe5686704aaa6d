"""A small world to serve in: a scripted policy, a ledger in memory, a real server on a loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx2
import uvicorn

from openclaw_rl.errors import BackendDown, ContextOverflow, NotInLedger
from openclaw_rl.ports import Alternative, Delta, Piece, Scores, Stream
from openclaw_rl.serve import RequestLimits, build_app
from openclaw_rl.types import Completion, Feedback, Message, Prompt, Sampling, Tokens, Turn, Version

END = 1_114_112
"""the token that ends a turn; every other token is one character"""


class Scripted:
    """A policy that says what it is told to: one character a token, log-prob -1/(position + 2)."""

    base = "scripted"
    context = 100_000

    def __init__(self, reply: str | Callable[[Prompt], str] = "Hello there.", *, tool_format: str = "hermes") -> None:
        self.name = "toy"
        self.tool_format = tool_format
        self.abilities = frozenset({"tool_choice", "json_schema"})  # what it can hold a reply to by itself
        self.reply = reply
        self.asked: list[tuple[Prompt, Sampling, int | None]] = []
        self.loaded: list[int] = []
        self.down = 0  # so many calls find the backend down
        self.stall_after: int | None = None  # say so many tokens, then nothing for ever
        self.break_after: int | None = None  # say so many tokens, then fail
        self.breaks = 10**6  # so many replies do
        self.pause_after: int | None = None  # say so many tokens, then wait for `go_on`
        self.began = threading.Event()
        self.closed = threading.Event()
        self._go_on = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live = 3

    @property
    def live(self) -> int:
        return self._live

    def go_on(self) -> None:
        """From any thread: say the rest."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._go_on.set)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        self.asked.append((prompt, sampling, version))
        self._loop = asyncio.get_running_loop()
        self.began.set()
        if self.down > 0:
            self.down -= 1
            raise BackendDown("the engine restarts", retry_after=0.001)
        number = self._live if version is None else version
        text = self.reply if isinstance(self.reply, str) else self.reply(prompt)
        prompt_ids = await self.encode(prompt)
        if len(prompt_ids) > self.context:
            raise ContextOverflow(limit=self.context, asked=len(prompt_ids))
        try:
            async for item in self._say(text, prompt_ids, sampling, number):
                yield item
        finally:
            self.closed.set()

    async def _say(self, text: str, prompt_ids: Tokens, sampling: Sampling, version: int) -> Stream:
        cut = sampling.max_tokens is not None and sampling.max_tokens <= len(text)
        stopped = next((stop for stop in sampling.stop if stop in text), None)
        drawn = text[: sampling.max_tokens] if cut else text
        if stopped:
            drawn = text[: text.index(stopped) + len(stopped)]
        said = drawn[: -len(stopped)] if stopped else drawn
        for at, char in enumerate(drawn):
            if at == self.stall_after:
                await asyncio.Event().wait()
            if at == self.pause_after:
                await self._go_on.wait()
            if at == self.break_after and self.breaks > 0:
                self.breaks -= 1
                raise BackendDown("the engine died")
            yield Delta(text=char if at < len(said) else "", pieces=(piece(char, at, sampling.top_logprobs),))
        ids = [ord(char) for char in drawn] + ([] if cut or stopped else [END])
        yield Completion(
            reply=Message(role="assistant", content=said),
            prompt_tokens=prompt_ids,
            reply_tokens=tuple(ids),
            logprobs=tuple(-1 / (at + 2) for at in range(len(ids))),
            sampling=sampling,
            finish="length" if cut else "stop",
            version=version,
        )

    async def encode(self, prompt: Prompt) -> Tokens:
        said = "".join(f"{message.role}{message.content}" for message in prompt.messages)
        return tuple(ord(char) for char in said + prompt.opening)

    async def tokenize(self, text: str) -> Tokens:
        return (*map(ord, text), END)

    async def decode(self, tokens: Tokens) -> str:
        return "".join(chr(token) for token in tokens if token < END)

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        return Scores(logprobs=tuple(-1.0 for _ in reply))

    async def load(self, version: Version) -> None:
        self.loaded.append(version.number)
        self._live = version.number


def piece(char: str, at: int, top: int) -> Piece:
    others = tuple(Alternative(token=97 + i, text=chr(97 + i), logprob=-2.0) for i in range(top))
    return Piece(token=ord(char), text=char, logprob=-1 / (at + 2), top=others)


class Notebook:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self.feedback: list[Feedback] = []
        self.endings: list[tuple[str, str]] = []
        self.optouts: set[tuple[str, str]] = set()
        self.live: Version | None = None
        self.fails: Exception | None = None
        self._changed = threading.Condition()

    def add_turn(self, turn: Turn) -> None:
        if self.fails is not None:
            raise self.fails
        with self._changed:
            self.turns[turn.id] = turn
            self._changed.notify_all()

    def add_feedback(self, feedback: Feedback) -> None:
        self.feedback.append(feedback)

    def add_ending(self, session: str, user: str) -> None:
        self.endings.append((session, user))

    def turn(self, turn_id: str) -> Turn:
        if turn_id not in self.turns:
            raise NotInLedger(f"no turn {turn_id}")
        return self.turns[turn_id]

    def has_session(self, session: str, user: str) -> bool:
        return any((turn.session, turn.user) == (session, user) for turn in self.turns.values())

    def add_optout(self, session: str, user: str) -> None:
        if self.fails is not None:
            raise self.fails
        self.optouts.add((session, user))

    def opted_out(self, session: str, user: str) -> bool:
        return (session, user) in self.optouts

    def live_version(self) -> Version | None:
        return self.live

    @property
    def last(self) -> Turn:
        return list(self.turns.values())[-1]

    def wait_for_turns(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.turns) >= count, timeout=20)


class World:
    """A server that runs, and all that it is made of."""

    def __init__(self, policy: Scripted, notebook: Notebook, url: str, app: Any) -> None:
        self.policy = policy
        self.notebook = notebook
        self.url = url
        self.app = app
        self._client = self.client()

    def client(self, **headers: str) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30, verify=False)

    def close(self) -> None:
        self._client.close()

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._client.post(path, content=content, headers={"content-type": "application/json", **names})

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self._client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def chat(self, text: str = "hi", *, headers: dict[str, str] | None = None, **more: Any) -> httpx2.Response:
        body = {"model": "toy", "messages": [{"role": "user", "content": text}], **more}
        return self._client.post("/v1/chat/completions", json=body, headers=headers or {})


@contextlib.contextmanager
def serving(policy: Scripted | None = None, **options: Any) -> Iterator[World]:
    """A server on a free loopback port for the length of the block."""
    policy = policy or Scripted()
    notebook = options.pop("ledger", None) or Notebook()
    app = build_app(policy=policy, ledger=notebook, **{"limits": RequestLimits(hold_seconds=5.0), **options})
    with listening(app) as url:
        world = World(policy, notebook, url, app)
        try:
            yield world
        finally:
            world.close()


@contextlib.contextmanager
def listening(app: Any) -> Iterator[str]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()


def events(text: str) -> list[tuple[str | None, Any]]:
    """The server-sent events in ``text``: name and data, JSON read; comments left out."""
    found: list[tuple[str | None, Any]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            data = fields["data"]
            found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found


def chunks(text: str) -> Sequence[Any]:
    """The chunks of a chat stream, which must end with [DONE]."""
    found = [data for _, data in events(text)]
    assert found[-1] == "[DONE]"
    return found[:-1]
