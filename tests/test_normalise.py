"""What the renderings of one conversation have in common, whatever a client did to them."""

from __future__ import annotations

import pytest
from conversations import bot, call, result, system, user

from openclaw_rl.collect.normalise import clean, prompt_path, without_reasoning


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
