"""Small conversations as a client sends them, and random ones by a simulator that knows the truth."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

from openclaw_rl.collect.threads import Threads
from openclaw_rl.types import Completion, Message, Outcome, Prompt, Sampling, SessionEnd, Tool, ToolCall, Turn

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def user(text: str) -> Message:
    return Message(role="user", content=text)


def bot(text: str = "", *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def result(text: str, call: str = "c1") -> Message:
    return Message(role="tool", content=text, tool_call_id=call)


def call(name: str, arguments: str, id: str = "c1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def turn(id: str, prompt: list[Message], reply: Message | str, *, at: float = 0.0, **more: Any) -> Turn:
    completion = Completion(
        reply=bot(reply) if isinstance(reply, str) else reply,
        prompt_tokens=(1,),
        reply_tokens=(2,),
        logprobs=(-0.5,),
        sampling=more.pop("sampling", Sampling()),
        finish=more.pop("finish", "stop"),
        version=0,
    )
    asked = Prompt(messages=tuple(prompt), tools=more.pop("tools", ()))
    return Turn(**{"id": id, "prompt": asked, "completion": completion, "user": "u1", "at": at, **more})


class Story:
    """Threads with a ledger's numbering; outcomes by turn, and a complaint when a turn gets two."""

    def __init__(self, **settings: Any) -> None:
        self.threads = Threads(**{"idle": 1800.0, **settings})
        self.outcomes: dict[str, Outcome] = {}
        self.seq = 0

    def add(self, *turns: Turn) -> None:
        for each in turns:
            self.seq += 1
            self._keep(self.threads.add(self.seq, each))

    def expire(self, now: float) -> None:
        self._keep(self.threads.expire(now))

    def end(self, session: str, *, at: float) -> None:
        self._keep(self.threads.end(SessionEnd(session=session, user="u1", at=at)))

    def said(self, id: str) -> list[tuple[str, str]]:
        return [(message.role, message.content) for message in self.outcomes[id].next_state]

    def _keep(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            assert outcome.turn not in self.outcomes, f"{outcome.turn} was settled twice"
            self.outcomes[outcome.turn] = outcome


WORDS = ("hi", "ok", "go on", "why?", "thanks a lot for this", "please look into the other folder too")
REPLIES = ("ok", "yes", "done", "I have looked into it and found nothing", "that is a rather long answer of mine")
TOOLS = (Tool(name="read"), Tool(name="exec"))
CHANGES = (
    "say",
    "say",
    "say",
    "regenerate",
    "retry",
    "edit",
    "compact",
    "drop",
    "lose",
    "reset",
    "heartbeat",
    "rewrite",
)


@dataclass(frozen=True)
class Said:
    """One message as it was meant. ``turn`` is the reply's turn, None for a reply of somebody else."""

    role: str
    text: str = ""
    calls: tuple[tuple[str, int], ...] = ()
    turn: str | None = None

    def shown(self) -> list[tuple[Any, ...]]:
        """What can be told of it over the wire: where one user message ends and the next begins can not."""
        lines = self.text.split("\n") if self.role == "user" else [self.text]
        return [(self.role, line, self.calls) for line in lines]


@dataclass
class Talk:
    """A client's session: how it names itself, and its history as meant."""

    name: str | None
    runtime: str | None
    persona: str
    tools: bool
    noise: bool
    history: list[Said] = field(default_factory=list)


@dataclass(frozen=True)
class Truth:
    talk: int
    parent: str | None
    next_state: tuple[tuple[str, str], ...]
    key: tuple[Any, ...]
    side: bool


class Simulator:
    """Random chats; after each turn it checks what the threads made of it against the truth."""

    def __init__(self, talks: list[Talk], rng: random.Random, *, unique: bool) -> None:
        self.talks, self.rng, self.unique = talks, rng, unique
        self.story = Story(idle=1e9)
        self.truth: dict[str, Truth] = {}
        self.turns: list[Turn] = []
        self.settled = 0
        self.matched = 0
        self.count = 0

    def step(self, which: int, change: str) -> None:
        talk = self.talks[which]
        side = change == "heartbeat"
        kept = list(talk.history)
        getattr(self, f"_{change}")(talk)
        if change == "retry" and len(kept) > len(talk.history):
            self._ask(which, reply=kept[-1])
        else:
            self._ask(which, side=side)
        if side:
            talk.history = kept

    def _ask(self, which: int, *, reply: Said | None = None, side: bool = False) -> None:
        talk = self.talks[which]
        self.count += 1
        id = f"t{self.count}"
        reply = replace(reply, turn=id) if reply else self._reply(talk, id, side)
        last = max((n for n, said in enumerate(talk.history) if said.role == "assistant"), default=-1)
        self.truth[id] = Truth(
            talk=which,
            parent=talk.history[last].turn if last >= 0 else None,
            next_state=tuple((said.role, said.text) for said in talk.history[last + 1 :]),
            key=(talk.persona, talk.tools, tuple(key for said in talk.history for key in said.shown()), *reply.shown()),
            side=side,
        )
        self.turns.append(self._turn(talk, id, reply))
        self.story.add(self.turns[-1])
        talk.history.append(reply)
        self._check(id)

    def _reply(self, talk: Talk, id: str, side: bool) -> Said:
        text = f"reply number {self.count} to all of that" if self.unique else self.rng.choice(REPLIES)
        calls: tuple[tuple[str, int], ...] = ()
        if talk.tools and not side and self.rng.random() < 0.3:
            calls = tuple(
                (self.rng.choice(("read", "exec")), self.rng.randrange(3)) for _ in range(self.rng.randint(1, 3))
            )
        return Said("assistant", text if not calls or self.rng.random() < 0.5 or self.unique else "", calls, id)

    # What a client or a person does.

    def _say(self, talk: Talk) -> None:
        if talk.history and talk.history[-1].calls:
            talk.history += [Said("tool", f"result {self.rng.randrange(3)}") for _ in talk.history[-1].calls]
            return
        for _ in range(1 if self.rng.random() < 0.8 else 2):
            talk.history.append(Said("user", "\n".join(self.rng.choices(WORDS, k=1 if self.rng.random() < 0.8 else 2))))

    def _regenerate(self, talk: Talk) -> None:
        if not talk.history:
            return self._say(talk)
        if talk.history[-1].role == "assistant":
            talk.history.pop()
        return None

    _retry = _regenerate

    def _edit(self, talk: Talk) -> None:
        places = [n for n, said in enumerate(talk.history) if said.role == "user"]
        if places:
            del talk.history[self.rng.choice(places) :]
        talk.history.append(Said("user", self.rng.choice(WORDS)))

    def _compact(self, talk: Talk) -> None:
        self._cut(talk)
        talk.history.insert(0, Said("user", f"Summary of the conversation so far, number {self.count}"))
        self._say(talk)

    def _drop(self, talk: Talk) -> None:
        self._cut(talk)
        self._say(talk)

    def _cut(self, talk: Talk) -> None:
        places = [n for n, said in enumerate(talk.history) if said.role == "user"]
        if places:
            del talk.history[: self.rng.choice(places)]

    def _lose(self, talk: Talk) -> None:
        places = [n for n, said in enumerate(talk.history[:-1]) if said.role == "assistant" and not said.calls]
        if places:
            del talk.history[self.rng.choice(places)]
        self._say(talk)

    def _reset(self, talk: Talk) -> None:
        talk.history.clear()
        self._say(talk)

    def _heartbeat(self, talk: Talk) -> None:
        if talk.history and talk.history[-1].calls:
            self._say(talk)
        talk.history.append(Said("user", "Follow the heartbeat monitor."))

    def _rewrite(self, talk: Talk) -> None:
        if talk.history and talk.history[-1].role == "assistant" and not talk.history[-1].calls:
            talk.history[-1] = Said("assistant", f"rewritten {self.count}")
        self._say(talk)

    # How it goes over the wire.

    def _turn(self, talk: Talk, id: str, reply: Said) -> Turn:
        calls = self._calls(reply, mangle=False)
        text = f"<think>what now {self.count}</think>{reply.text}" if talk.noise else reply.text
        return turn(
            id,
            self._render(talk),
            bot(text, *calls),
            at=float(10 * self.count),
            session=talk.name,
            tools=TOOLS if talk.tools else (),
        )

    def _render(self, talk: Talk) -> list[Message]:
        rendered = [system(f"{talk.persona} It is {self.count} o'clock.")]
        first = True
        for said in talk.history:
            if said.role == "user":
                text = self._envelope(talk, said.text, first)
                first = False
                if talk.noise and rendered[-1].role == "user" and self.rng.random() < 0.5:
                    rendered[-1] = user(f"{rendered[-1].content}\n{text}")
                else:
                    rendered.append(user(text))
            elif said.role == "tool":
                rendered.append(result(said.text))
            else:
                rendered.append(bot(said.text + " " * talk.noise, *self._calls(said, mangle=talk.noise)))
        if talk.noise:
            rendered.append(user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>now<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"))
        return rendered

    def _envelope(self, talk: Talk, text: str, first: bool) -> str:
        if talk.noise and not text.startswith("Follow"):
            text = f"[Sun 2026-11-15 00:{self.count % 60:02d} UTC] {text}"
        if first and talk.runtime:
            text += f"\n\nRuntime: agent=main | session=agent:main:k | sessionId={talk.runtime} | n={self.count}"
        return text

    def _calls(self, said: Said, *, mangle: bool) -> list[ToolCall]:
        keep = ('{"b": "x", "a": %d}', '{"a":%d,"b":"x"}')
        return [
            call(name, keep[mangle] % value, f"call{n}" if mangle else f"call_{n}-{said.turn}")
            for n, (name, value) in enumerate(said.calls)
        ]

    # What must hold.

    def _check(self, id: str) -> None:
        fresh = [outcome for outcome in self.story.outcomes.values() if outcome.next_state][self.settled :]
        self.settled += len(fresh)
        mine = self.truth[id]
        for outcome in fresh:
            assert outcome.turn != id
            said = tuple((message.role, message.content) for message in outcome.next_state)
            assert _flat(said) == _flat(mine.next_state) or self._rewritten(outcome, said)
            assert mine.parent is None or self._same(outcome.turn, mine.parent) or self._rewritten(outcome, said)

    def _rewritten(self, outcome: Outcome, said: tuple[tuple[str, str], ...]) -> bool:
        """The latest reply was rewritten: then it is an earlier turn that is shown, with what stands after it."""
        history = self.talks[self.truth[f"t{self.count}"].talk].history[:-1]
        for at, message in enumerate(history):
            if message.turn and self._same(outcome.turn, message.turn):
                after = history[at + 1 :]
                stop = next((n for n, m in enumerate(after) if m.role == "assistant"), len(after))
                return stop < len(after) and _flat(said) == _flat(tuple((m.role, m.text) for m in after[:stop]))
        return False

    def _same(self, one: str, other: str) -> bool:
        """The same turn, or one that no one can tell from it: alike in all that was said, in unnamed talks or one talk."""
        mine, theirs = self.truth[one], self.truth[other]
        talks = (self.talks[mine.talk], self.talks[theirs.talk])
        unnamed = all(talk.name is None and talk.runtime is None for talk in talks)
        return one == other or (mine.key == theirs.key and (unnamed or mine.talk == theirs.talk))

    def finish(self) -> None:
        self.story.expire(1e12)
        assert set(self.story.outcomes) == set(self.truth)
        for id, outcome in self.story.outcomes.items():
            mine = self.truth[id]
            assert (outcome.kind == "side") == mine.side
            assert outcome.parent is None or (mine.parent is not None and self._same(outcome.parent, mine.parent))
            self.matched += outcome.parent is not None


def _flat(said: tuple[tuple[str, str], ...]) -> str:
    """Neighbouring user messages may have been joined on the way."""
    return json.dumps([[role, line] for role, text in said for line in text.split("\n")])


def _talks(rng: random.Random, number: int) -> list[Talk]:
    talks = []
    for n in range(number):
        how = rng.choice(("none", "none", "named", "runtime", "epoch"))
        talks.append(
            Talk(
                name=f"session-{n}" if how == "named" else f"{UUID[:-1]}{n}:1" if how == "epoch" else None,
                runtime=f"{UUID[:-1]}{n}" if how == "runtime" else None,
                persona=rng.choice(("You are a poet.", "You are terse.")),
                tools=rng.random() < 0.6,
                noise=rng.random() < 0.7,
            )
        )
    return talks


def simulate(seed: int, steps: list[tuple[int, str]], *, unique: bool) -> Simulator:
    rng = random.Random(seed)
    simulator = Simulator(_talks(rng, 4), rng, unique=unique)
    for which, change in steps:
        simulator.step(which, change)
    simulator.finish()
    return simulator
