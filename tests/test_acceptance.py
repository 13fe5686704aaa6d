"""The checker of the acceptance run: content with a good ledger, and not with any of the ways it can be wrong."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.ports import Delta
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Tool, ToolCall

FOLDER = Path(__file__).parents[1] / "scripts" / "acceptance_openclaw"
pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def parts() -> list[Any]:
    from checks import Part
    from scripted import AFTER_RESET, SECOND, THIRD

    return [
        Part(key="second", said=SECOND, cut="reset"),
        Part(key="second", said=AFTER_RESET),
        Part(key="third", said=THIRD),
    ]


def good() -> list[Any]:
    """The rows that a faultless run of `parts` leaves, and one side call."""
    from checks import Row, expected
    from scripted import TOO_LONG

    rows: list[Any] = []
    for number, turn in enumerate(expected(parts())):
        same = rows and rows[-1].session == f"s-{turn.key}:{turn.part}"
        corrected = turn.follows == ("user", TOO_LONG)
        rows.append(
            Row(
                id=f"t{number:02}",
                key=turn.key,
                tools=True,
                asked=turn.asked,
                calls=(turn.call,) if turn.call else (),
                declared=None,
                version=0 if turn.part == 0 else 1,
                session=f"s-{turn.key}:{turn.part}",
                kind="main",
                parent=rows[-1].id if same else None,
                next_state=(turn.follows,) if turn.follows else (),
                ended=None if turn.follows else "superseded",
                judged=bool(turn.follows),
                score=-1.0 if corrected else None,
                hints=("Please answer in under 30 words.",) if corrected else (),
                step=1 if corrected and turn.part == 0 else None,
                reply=f"reply {number}",
            )
        )
    side = Row(id="r1", key="", tools=False, asked="recap", calls=(), declared="side", version=0, kind="side")
    return [*rows, side]


def failing(rows: list[Any], **more: Any) -> list[str]:
    """The names of the checks that do not hold."""
    from checks import check

    steps = [[row.id for row in rows if row.step == 1]]
    given = {"plugin": False, "heard": [("third", "reply  9")], "failed": [], "steps": steps, "live": 1, **more}
    return [each.name for each in check(rows, parts(), **given) if not each.ok]


def changed(rows: list[Any], name: str, **fields: Any) -> list[Any]:
    return [replace(row, **fields) if row.id == name else row for row in rows]


def test_the_script_makes_a_turn_for_each_message_and_each_tool_round() -> None:
    from checks import expected
    from scripted import FIRST, SECOND

    from_script = expected([*parts()])
    assert len(from_script) == (6 + 1) + 2 + 3
    assert [(turn.asked, turn.call, turn.follows) for turn in from_script[4:6]] == [
        (SECOND[4].text, "exec", ("tool", "42")),
        (SECOND[4].text, None, ("user", SECOND[5].text)),
    ]
    assert [call.tool for call in FIRST[4].calls] == ["write", "read", "exec"]


def test_a_faultless_run_passes_every_check() -> None:
    assert failing(good()) == []


@pytest.mark.parametrize(
    ("turn", "fields", "name"),
    [
        ("t01", {"kind": "side", "reason": "title"}, "every user turn and tool round is one main turn"),
        ("t01", {"asked": "something else"}, "every user turn and tool round is one main turn"),
        ("t00", {"next_state": (("user", "What is rain?"),)}, "each with its own next state, none matched wrongly"),
        ("t00", {"next_state": (), "ended": "idle"}, "each with its own next state, none matched wrongly"),
        ("t04", {"next_state": (("tool", "41"),)}, "each with its own next state, none matched wrongly"),
        ("r1", {"kind": "main", "reason": "opening"}, "side calls are side, and never trained"),
        ("r1", {"step": 1}, "side calls are side, and never trained"),
        ("t09", {"parent": "t00"}, "sessions are separate"),
        ("t09", {"session": "s-second:0"}, "sessions are separate"),
        ("t06", {"next_state": (("user", "What is a comet?"),)}, "reset and compaction join nothing wrongly"),
        ("t07", {"parent": "t06"}, "reset and compaction join nothing wrongly"),
        ("t00", {"judged": False}, "corrections reached the judge"),
        ("t01", {"declared": "main"}, "without the plugin it is found out"),
    ],
)
def test_each_fault_is_seen(turn: str, fields: dict[str, Any], name: str) -> None:
    assert name in failing(changed(good(), turn, **fields))


def test_some_corrections_may_be_left_but_not_most() -> None:
    rows = changed(good(), "t00", score=None, hints=())
    assert failing(rows) == []
    assert failing(changed(rows, "t02", hints=("Be kind.",))) == ["corrections reached the judge"]


def test_a_compaction_may_go_on_with_what_was_said_next_and_with_nothing_else() -> None:
    from checks import check

    compacted = [replace(parts()[0], cut="compaction"), *parts()[1:]]
    on = changed(changed(good(), "t06", next_state=(("user", "What is a comet?"),)), "t07", parent="t06")
    wrong = changed(on, "t06", next_state=(("user", "What is rain?"),))
    given = {"plugin": False, "heard": [], "failed": [], "steps": [["t00"]], "live": 1}
    assert [each.name for each in check(on, compacted, **given) if not each.ok] == []
    assert [each.name for each in check(wrong, compacted, **given) if not each.ok] == [
        "reset and compaction join nothing wrongly"
    ]


def test_a_turn_that_is_missing_or_one_too_many_is_seen() -> None:
    rows = good()
    name = "every user turn and tool round is one main turn"
    assert name in failing([row for row in rows if row.id != "t04"])
    assert name in failing([*rows, replace(rows[11], id="t99")])


def test_a_message_that_had_to_be_said_again_may_be_there_twice() -> None:
    from checks import pair
    from scripted import TOO_LONG

    rows = good()
    lost = replace(rows[10], id="lost", next_state=())
    talk = [*rows[:10], lost, *rows[10:12]]
    again = [*parts()[:2], replace(parts()[2], again=frozenset({TOO_LONG}))]
    paired, stray = pair(talk, again)
    assert stray == []
    assert [row.id for _, row in paired if row][-2:] == ["t10", "t11"]


def test_training_twice_or_never_is_seen() -> None:
    rows = good()
    assert "trained, and no turn twice" in failing(rows, steps=[["t00"], ["t00"]])
    assert "trained, and no turn twice" in failing(rows, steps=[])
    assert "trained, and no turn twice" in failing(rows, steps=[["r1"]])
    assert "a trained version is served" in failing(rows, live=0)


def test_an_answer_that_is_not_in_the_ledger_is_seen() -> None:
    assert failing(good(), heard=[("third", "another")]) == ["every answer that was heard is in the ledger"]
    assert failing(good(), failed=["status 500"]) == ["no request failed"]


def test_with_the_plugin_every_turn_must_say_what_it_is() -> None:
    rows = [replace(row, declared=row.kind) for row in good()]
    assert failing(rows, plugin=True) == []
    assert failing(changed(rows, "t03", declared=None), plugin=True) == ["the plugin says what each turn is"]


def test_what_openclaw_does_by_itself_after_a_restart_is_told_from_what_was_said() -> None:
    from run import _said

    resumed = "[System] Your previous turn was interrupted by a gateway restart while waiting. Continue."
    queued = "[Queued user message from a previous active turn; preserved as context only.]\nShorter."
    assert _said("Shorter.") == _said(f"Shorter.\n{resumed}") == _said(queued) == "Shorter."
    assert _said(f"{queued}\n\nContinue the current task from the transcript.") == "Shorter."
    assert _said(f"{queued}\n\nShorter.") == "Shorter."


def test_the_session_key_is_read_from_openclaws_own_line() -> None:
    from checks import session_key

    assert session_key("hello\n\nRuntime: agent=main | session=agent:main:first | sessionId=6f1c | host=h") == "first"
    assert session_key("the session=agent:main:first is mine") == ""


# --- the given calls ---


def asked(*messages: Message, tools: bool = True) -> Prompt:
    return Prompt(messages=messages, tools=(Tool(name="exec"),) if tools else ())


def user(text: str) -> Message:
    return Message(role="user", content=f"[Sun 2026-11-15 06:00 UTC] {text}")


async def replied(prompt: Prompt, **more: Any) -> tuple[list[Delta], Completion]:
    from scripted import generate

    policy = FakePolicy(reply="word " * 100)
    stream: AsyncIterator[Delta | Completion] = generate(policy, prompt, Sampling(**more), version=None)
    items = [item async for item in stream]
    assert isinstance(items[-1], Completion)
    return [item for item in items if isinstance(item, Delta)], items[-1]


async def test_calls_are_given_in_turn_and_then_the_words() -> None:
    from scripted import COUNT, FIRST, READ, WRITE, given

    talk, seen = [user(FIRST[4].text)], []
    for number, call in enumerate((WRITE, READ, COUNT)):
        seen.append(given(talk))
        made = ToolCall(id=f"c{number}", name=call.tool, arguments="{}")
        talk += [Message(role="assistant", tool_calls=(made,)), Message(role="tool", content=call.shows)]
    assert seen == [WRITE.text, READ.text, COUNT.text]
    assert given(talk) == "It has 8."
    assert given([*talk, Message(role="assistant", content="It has 8."), user("What is tea?")]) is None
    internal = Message(role="user", content="<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnone")
    assert given([user(FIRST[4].text), internal]) == WRITE.text


async def test_a_given_call_has_the_models_tokens_and_log_probs_and_says_so() -> None:
    from scripted import ADD, SECOND

    _, done = await replied(asked(user(SECOND[4].text)))
    assert done.reply.content == ADD.text
    assert bytes(done.reply_tokens[:-1]).decode() == ADD.text
    assert done.scored
    assert len(done.logprobs) == len(done.reply_tokens)


async def test_the_models_own_replies_are_short_and_shorter_on_the_side() -> None:
    from scripted import REPLY_TOKENS, SIDE_TOKENS

    for tools, limit in ((True, REPLY_TOKENS), (False, SIDE_TOKENS)):
        _, done = await replied(asked(user("What is tea?"), tools=tools))
        assert (len(done.reply_tokens), done.scored) == (limit, False)
    _, done = await replied(asked(user("What is tea?")), max_tokens=8)
    assert len(done.reply_tokens) == 8
