"""Which turn follows which: small stories, and random chats by a simulator that knows the truth."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.collect.normalise import clean, prompt_path, without_reasoning
from openclaw_rl.collect.threads import Threads, conversation_name
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


# --- what the renderings of a conversation have in common ------------------------------------------------------------


def test_envelopes_are_taken_off_a_users_words() -> None:
    text = "[Sun 2026-11-15 00:06 UTC] hello\nthere\n\nRuntime: agent=main | session=agent:main:k | sessionId=u1 | x=1"
    assert clean(text) == "hello\nthere"
    assert clean("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> a\nb <<<END_OPENCLAW_INTERNAL_CONTEXT>>>") == ""
    assert clean("a <system-reminder>x</system-reminder>b<system-reminder>y</system-reminder>") == "a b"
    assert clean("what is <system-reminder>?") == "what is <system-reminder>?"
    assert clean("one\n[Mon 2026-11-16 10:00 UTC] two") == "one\ntwo"
    assert clean("[2026-11-15 00:06:01] boom\n[2026-11-15 00:06:02] bang") == "boom\n[2026-11-15 00:06:02] bang"
    assert clean("[note] keep this, and [2] that") == "[note] keep this, and [2] that"
    resumed = "[System] Your previous turn was interrupted by a gateway restart while waiting. Continue."
    assert clean(f"Too long.\n{resumed}") == clean(f"{resumed}\nToo long.") == "Too long."


@pytest.mark.parametrize("text", ["<think>a\nb</think>yes", "a\nb</think>yes", "<think></think>yes"])
def test_reasoning_is_no_part_of_a_reply(text: str) -> None:
    assert without_reasoning(text) == "yes"


def test_a_clock_that_the_model_wrote_is_no_part_of_a_reply() -> None:
    assert without_reasoning("[Sun 2026-11-15 10:01 UTC] A river.") == without_reasoning(" A river.") == "A river."
    assert without_reasoning("[1] A river.") == "[1] A river."


def test_rewritten_history_has_the_same_path() -> None:
    was = [
        system("It is 10:00."),
        user("[Sun 2026-11-15 00:06 UTC] list\nall"),
        user("please"),
        bot("<think>hm</think>Sure. ", call("ls", '{"a": 1, "b": [2]}', "call_1-x")),
        result("f.txt", "call_1-x"),
    ]
    now = [
        system("It is 11:00 on Monday."),
        user("list\nall\nplease"),
        bot("Sure."),
        bot("", call("ls", '{"b":[2],"a":1}', "call1x")),
        result("f.txt", "call1x"),
        user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>x<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"),
    ]
    assert prompt_path(was).path == prompt_path(now).path
    assert len(prompt_path(was).path) == 8 * 6  # three lines, a text, a call, a result
    assert prompt_path(was).ends == (5,)


def test_other_words_other_roles_and_another_order_have_other_paths() -> None:
    paths = {
        prompt_path(m).path for m in ([user("a")], [bot("a")], [result("a")], [user("a b")], [user("a"), bot("b")])
    }
    assert len(paths) == 5
    assert prompt_path([user("a\nb")]).path != prompt_path([user("b\na")]).path


# --- stories ---------------------------------------------------------------------------------------------------------


def test_the_next_request_says_what_came_after() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"), turn("t2", [user("hi"), bot("hello"), user("shorter")], "ok", at=5.0))
    assert story.said("t1") == [("user", "shorter")]
    first = story.outcomes["t1"]
    assert (first.session, first.index, first.parent, first.ended, first.at) == ("thread-t1", 0, None, None, 5.0)
    story.expire(1806.0)
    last = story.outcomes["t2"]
    assert (last.session, last.index, last.parent, last.ended, last.next_state) == ("thread-t1", 1, "t1", "idle", ())
    assert last.at == 1805.0


def test_all_tool_results_are_the_next_state() -> None:
    calls = bot("", call("ls", "{}", "a"), call("pwd", "{}", "b"))
    results = [result("f", "a"), result("/", "b")]
    story = Story()
    story.add(turn("t1", [user("look")], calls), turn("t2", [user("look"), calls, *results], "a file"))
    assert story.said("t1") == [("tool", "f"), ("tool", "/")]


def test_a_retry_of_the_same_request_judges_nothing() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello", session="s"), turn("t2", [user("hi")], "hello", session="s", at=3.0))
    assert story.outcomes == {}
    story.add(turn("t3", [user("hi"), bot("hello"), user("go")], "gone", session="s", at=9.0))
    assert story.said("t2") == [("user", "go")]
    assert (story.outcomes["t1"].ended, story.outcomes["t1"].evidence) == ("superseded", ())


QUEUED = "[Queued user message from a previous active turn; preserved as context only. Continue below.]"


def test_words_that_a_client_sent_again_after_a_failure_still_count() -> None:
    again = f"{QUEUED}\nshorter\n\nContinue the current task from the existing transcript."
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"), turn("t2", [user("hi"), bot("hello"), user(again)], "shorter\n\nCon"))
    assert story.said("t1") == [("user", "shorter")]
    assert (story.outcomes["t2"].kind, story.outcomes["t2"].parent) == ("side", "t1")
    # the client has taken the echo out of the reply, and its own words out of the request
    later = [user("hi"), bot("hello"), user("shorter"), bot("short"), user("thanks")]
    story.add(turn("t3", later, "welcome"), turn("t4", [*later, bot("welcome"), user("bye")], "bye"))
    assert (story.outcomes["t3"].kind, story.said("t3")) == ("main", [("user", "bye")])


def test_a_retry_whose_prompt_shows_the_same_words_is_not_judged_by_its_own_prompt() -> None:
    prompt = [user("say it"), bot("it"), user("say it")]
    story = Story()
    story.add(turn("t1", prompt, "it"), turn("t2", prompt, "it", at=2.0))
    story.add(turn("t3", [user("say it"), bot("it"), user("now this")], "this", at=4.0))
    assert all(not outcome.next_state for outcome in story.outcomes.values())


def test_the_abandoned_reply_was_regenerated() -> None:
    before = [user("hi"), bot("hello"), user("a poem")]
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello"), turn("t2", before, "bad poem", at=1.0), turn("t3", before, "good", at=8.0)
    )
    story.add(turn("t4", [*before, bot("good"), user("thanks")], "welcome", at=9.0))
    assert (story.outcomes["t2"].ended, story.outcomes["t2"].evidence) == ("superseded", ("regenerated",))
    assert story.outcomes["t2"].next_state == ()
    assert (story.said("t3"), story.outcomes["t3"].parent) == ([("user", "thanks")], "t1")


@pytest.mark.parametrize(("second", "finish"), [(1.2, "stop"), (8.0, "aborted")])
def test_parallel_calls_and_broken_replies_are_not_regenerations(second: float, finish: Any) -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "a", session="s", at=1.0, finish=finish))
    story.add(turn("t2", [user("hi")], "b", session="s", at=second))
    story.add(turn("t3", [user("hi"), bot("b"), user("go")], "gone", session="s", at=9.0))
    assert (story.outcomes["t1"].ended, story.outcomes["t1"].evidence) == ("superseded", ())


def test_two_unnamed_talks_that_open_alike_are_no_regeneration() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"), turn("t2", [user("hi")], "hey", at=60.0))
    story.add(turn("t3", [user("hi"), bot("hey"), user("you")], "yes", at=70.0))
    story.expire(5000.0)
    assert (story.outcomes["t1"].ended, story.outcomes["t1"].evidence) == ("idle", ())


def test_an_edited_question_is_a_branch() -> None:
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello"),
        turn("t2", [user("hi"), bot("hello"), user("red")], "crimson", at=1.0),
        turn("t3", [user("hi"), bot("hello"), user("blue")], "navy", at=2.0),
        turn("t4", [user("hi"), bot("hello"), user("blue"), bot("navy"), user("fine")], "good", at=3.0),
    )
    story.expire(9000.0)
    assert story.said("t1") == [("user", "red")]
    assert (story.outcomes["t3"].parent, story.outcomes["t3"].index) == ("t1", 1)
    assert (story.outcomes["t2"].ended, story.outcomes["t2"].evidence) == ("superseded", ())


def test_a_reply_that_the_client_rewrote_matches_nothing_and_the_talk_goes_on() -> None:
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello"),
        turn("t2", [user("hi"), bot("hello"), user("red")], "crimson", at=1.0),
        turn("t3", [user("hi"), bot("hello"), user("red"), bot("REWRITTEN"), user("ok?")], "yes", at=2.0),
    )
    story.expire(9000.0)
    assert story.outcomes["t2"].next_state == ()
    assert (story.outcomes["t3"].session, story.outcomes["t3"].parent) == ("thread-t1", None)


def test_replies_of_somebody_else_end_the_next_state() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"))
    story.add(turn("t2", [user("hi"), bot("hello"), user("a"), bot("not ours"), user("b")], "yes", at=1.0))
    assert story.said("t1") == [("user", "a")]


def test_sessions_that_are_named_apart_never_join() -> None:
    opening, more = [user("hi")], [user("hi"), bot("hello"), user("more")]
    story = Story()
    story.add(turn("t1", opening, "hello", session="s1"), turn("t2", opening, "hello", session="s2", at=1.0))
    story.add(turn("t3", more, "x", session="s1", at=2.0), turn("t4", more, "y", session="s3", at=3.0))
    assert set(story.outcomes) == {"t1"}
    story.expire(9000.0)
    assert (story.outcomes["t3"].parent, story.outcomes["t4"].parent) == ("t1", None)


def test_users_never_join() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"), turn("t2", [user("hi"), bot("hello"), user("x")], "y", user="u2"))
    assert story.outcomes == {}


def test_twins_of_unnamed_talks_are_answered_once_each() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"), turn("t2", [user("hi")], "hello", at=1.0))
    story.add(turn("t3", [user("hi"), bot("hello"), user("x")], "1", at=2.0))
    story.add(turn("t4", [user("hi"), bot("hello"), user("y")], "2", at=3.0))
    assert (story.said("t2"), story.said("t1")) == ([("user", "x")], [("user", "y")])


def test_twins_under_other_system_prompts_are_told_apart_or_left_alone() -> None:
    story = Story()
    story.add(turn("t1", [system("pirate"), user("hi")], "hello"), turn("t2", [system("poet"), user("hi")], "hello"))
    story.add(turn("t3", [system("clown"), user("hi"), bot("hello"), user("x")], "1"))
    assert story.outcomes == {}
    story.add(turn("t4", [system("pirate"), user("hi"), bot("hello"), user("y")], "2"))
    assert set(story.outcomes) == {"t1"}


def test_a_history_that_may_be_the_tail_of_another_talk_matches_neither() -> None:
    story = Story()
    story.add(turn("t1", [user("a"), bot("b"), user("hi")], "hello"), turn("t2", [user("hi")], "hello", at=1.0))
    story.add(turn("t3", [user("hi"), bot("hello"), user("x")], "y", at=2.0))
    assert story.outcomes == {}


LONG = "the capital of France is Paris, on the Seine"


def test_a_client_that_drops_old_messages_is_still_followed() -> None:
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello"),
        turn("t2", [user("hi"), bot("hello"), user("capital?")], LONG, at=1.0),
        turn("t3", [user("capital?"), bot(LONG), user("thanks")], "welcome", at=2.0),
    )
    assert story.said("t2") == [("user", "thanks")]
    story.expire(9000.0)
    assert (story.outcomes["t3"].index, story.outcomes["t3"].session) == (2, "thread-t1")


def test_a_summary_in_place_of_old_messages_is_still_followed() -> None:
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello"),
        turn("t2", [user("hi"), bot("hello"), user("capital?")], LONG, at=1.0),
        turn("t3", [user("Summary of the conversation: hi."), user("capital?"), bot(LONG), user("ok")], "!", at=2.0),
    )
    assert story.said("t2") == [("user", "ok")]


def test_a_named_talk_goes_on_after_a_summary_that_kept_no_reply() -> None:
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello", session="s"),
        turn("t2", [user("hi"), bot("hello"), user("go on")], "well", session="s", at=1.0),
        turn("t3", [user("<summary>they met</summary>"), user("and?")], "so", session="s", at=2.0),
    )
    assert (story.outcomes["t2"].ended, story.outcomes["t2"].next_state) == ("compacted", ())
    story.end("s", at=3.0)
    assert (story.outcomes["t3"].index, story.outcomes["t3"].ended) == (2, "done")


def test_a_new_epoch_ends_what_the_old_one_left() -> None:
    assert conversation_name(turn("x", [user("hi")], "a", session=f"{UUID}:3")).base == UUID  # type: ignore[union-attr]
    assert conversation_name(turn("x", [user("hi")], "a", session="user:3")).base == "user:3"  # type: ignore[union-attr]
    story = Story()
    story.add(turn("t1", [user("hi")], "hello", session=f"{UUID}:1"))
    story.add(turn("t2", [user("new talk")], "sure", session=f"{UUID}:2", at=1.0))
    assert (story.outcomes["t1"].ended, story.outcomes["t1"].session) == ("superseded", f"{UUID}:1")
    story.end(UUID, at=2.0)
    assert (story.outcomes["t2"].ended, story.outcomes["t2"].session) == ("done", f"{UUID}:2")


def test_a_kept_reply_joins_two_epochs_of_one_session() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello", session=f"{UUID}:1"))
    story.add(turn("t2", [user("Summary of the chat."), user("hi"), bot("hello"), user("x")], "y", session=f"{UUID}:2"))
    assert story.said("t1") == [("user", "x")]


def test_a_heartbeat_is_neither_an_answer_nor_a_loss() -> None:
    beat = user("Follow the heartbeat monitor instructions.")
    talk = [user("hi"), bot("hello")]
    story = Story()
    story.add(turn("t1", talk[:1], "hello"), turn("t2", [*talk, beat], "HEARTBEAT_OK", at=1.0))
    assert (story.outcomes["t2"].kind, story.outcomes["t2"].ended, story.outcomes["t2"].parent) == (
        "side",
        "side",
        "t1",
    )
    assert "t1" not in story.outcomes
    story.add(turn("t3", [*talk, beat, bot("HEARTBEAT_OK"), user("how are you")], "fine", at=2.0))
    assert story.said("t1") == [("user", "how are you")]
    story.expire(9000.0)
    assert story.outcomes["t3"].parent == "t1"


def test_a_declared_end_closes_the_session_up_to_then() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello", session="s", at=1.0), turn("t2", [user("b")], "c", session="s", at=5.0))
    story.end("s", at=3.0)
    assert {id: outcome.ended for id, outcome in story.outcomes.items()} == {"t1": "done"}
    story.add(turn("t3", [user("b"), bot("c"), user("bye")], "bye", session="s", at=6.0, done=True))
    assert story.said("t2") == [("user", "bye")]
    assert story.outcomes["t3"].ended == "done"


def test_hours_of_silence_end_a_turn_before_the_answer_comes() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"))
    story.add(turn("t2", [user("hi"), bot("hello"), user("back again")], "welcome", at=3000.0))
    assert (story.outcomes["t1"].ended, story.outcomes["t1"].next_state) == ("idle", ())
    story.expire(9000.0)
    assert story.outcomes["t2"].parent == "t1"


def test_memory_is_bounded_by_time_and_by_number() -> None:
    story = Story(capacity=100)
    for n in range(250):
        story.add(turn(f"t{n}", [user(f"question {n}")], f"answer {n}", at=float(n)))
    assert len(story.threads) == 100
    assert len(story.outcomes) == 150
    assert {outcome.ended for outcome in story.outcomes.values()} == {"evicted"}
    story.expire(249.0 + 3601.0)
    assert (len(story.threads), story.threads.open, len(story.outcomes)) == (0, 0, 250)
    kept = vars(story.threads)
    assert [name for name in ("_entries", "_threads", "_bases", "_due", "_old") if kept[name]] == []
    assert (kept["_index"].paths, kept["_index"].requests, kept["_index"].tails) == ({}, {}, {})


def test_a_repeated_call_is_marked() -> None:
    ls = bot("", call("ls", '{"p": 1}'))
    story = Story()
    story.add(turn("t1", [user("look")], ls), turn("t2", [user("look"), ls, result("f")], ls, at=1.0))
    story.add(turn("t3", [user("look"), ls, result("f"), ls, result("f")], "f", at=2.0))
    assert (story.outcomes["t1"].evidence, story.outcomes["t2"].evidence) == ((), ("repeated_call",))


# --- random chats by a simulator that knows the truth ----------------------------------------------------------------

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


class World:
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


def play(seed: int, steps: list[tuple[int, str]], *, unique: bool) -> World:
    rng = random.Random(seed)
    world = World(_talks(rng, 4), rng, unique=unique)
    for which, change in steps:
        world.step(which, change)
    world.finish()
    return world


STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(CHANGES)), min_size=1, max_size=40)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), steps=STEPS, unique=st.booleans())
def test_a_reply_is_matched_to_its_true_parent_or_to_none(
    seed: int, steps: list[tuple[int, str]], unique: bool
) -> None:
    assert play(seed, steps, unique=unique).truth, "every step checks its own matches against the truth"


def test_nearly_every_reply_is_matched_when_replies_differ() -> None:
    rng = random.Random(7)
    shown = matched = 0
    for seed in range(40):
        steps = [(rng.randrange(4), rng.choice([c for c in CHANGES if c != "rewrite"])) for _ in range(40)]
        world = play(seed, steps, unique=True)
        shown += sum(truth.parent is not None for truth in world.truth.values())
        matched += world.matched
    assert shown > 800
    assert matched / shown > 0.95
