"""What a user does as weak evidence: a request that is made again, in any language; sure or silent."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from judges import judge_loop, rules_judge

from openclaw_rl.judge.behaviour import ASKED_AGAIN, BehaviourJudge, asks_again, with_behaviour
from openclaw_rl.judge.labelled import LabelledRow, read_files
from openclaw_rl.ports import Case
from openclaw_rl.testing import TemporaryLedger, make_completion, make_message, make_outcome, make_turn
from openclaw_rl.types import Hint, Prompt, Verdict

VOICES = Path(__file__).parents[1] / "data" / "voices"
REQUEST = "Merge customers.csv and crm.xlsx on email, and report the unmatched counts."
REPLY = "I merged the files into merged.csv; it has 8,114 rows."


def case(message: str, *, request: str = REQUEST, reply: str = REPLY, scored: bool = False) -> Case:
    asked = Prompt(messages=(make_message("user", request),))
    said = make_completion(reply=make_message("assistant", reply), scored=scored)
    turn = make_turn(prompt=asked, completion=said)
    return Case(turn=turn, outcome=make_outcome(turn, next_state=(make_message("user", message),)))


@pytest.mark.parametrize(
    ("request_", "reply", "message"),
    [
        (REQUEST, REPLY, "And the unmatched counts?"),
        ("zeig mir nur die offenen rechnungen", "Hier sind alle Rechnungen: bezahlt 03.01., …", "NUR die offenen"),
        ("明天会议的地址和时间发我", "会议在明天上午十点举行。", "地址呢,会议的地址"),
        ("كم سعر تذكرة القطار إلى الإسكندرية", "القطار مريح وسريع.", "كم سعر التذكرة؟ سعر تذكرة القطار"),
    ],
)
def test_who_names_again_what_the_reply_left_out_asks_again(request_: str, reply: str, message: str) -> None:
    assert asks_again(request_, reply, message)


@pytest.mark.parametrize(
    "message",
    [
        "Thanks, and which columns did you join?",  # mostly of its own
        "How many rows does merged.csv have?",  # of the reply
        "counts",  # a word alone may be an order to go on
        "",
    ],
)
def test_a_message_with_terms_of_its_own_or_of_the_reply_does_not(message: str) -> None:
    assert not asks_again(REQUEST, REPLY, message)


def test_an_answer_to_the_replys_question_is_no_request_made_again() -> None:
    assert not asks_again(REQUEST, "Shall I merge first, or count?", "the unmatched counts")


def test_behaviour_speaks_only_where_the_judge_is_silent() -> None:
    asked = case("And the unmatched counts?")

    def judged(score: float | None, *hints: Hint) -> Verdict:
        return Verdict(turn=asked.turn.id, score=score, source="judge", hints=hints, note="it says so")

    found = with_behaviour(asked, judged(None))
    assert (found.score, found.source, found.note) == (-0.5, "behaviour", ASKED_AGAIN)
    for said in (judged(1.0), judged(0.0), judged(None, Hint(text="Name the counts, too."))):
        assert with_behaviour(asked, said) is said
    assert with_behaviour(case("Great, and now the invoices"), judged(None)).score is None


def test_what_is_reported_of_a_recorded_user_is_no_behaviour() -> None:
    silent = Verdict(turn="t", score=None, source="judge")
    assert with_behaviour(case("And the unmatched counts?", scored=True), silent) is silent


@pytest.mark.anyio
@pytest.mark.parametrize(("behaviour", "score", "source"), [(True, -0.5, "behaviour"), (False, None, "judge")])
async def test_the_loop_writes_it_with_its_own_source(behaviour: bool, score: float | None, source: str) -> None:
    with TemporaryLedger() as ledger:
        asked = case("And the unmatched counts?")
        ledger.serve.add_turn(asked.turn)
        ledger.collect.settle([asked.outcome], [], turns_read=1, endings_read=None)
        await judge_loop(ledger.judge, rules_judge(), behaviour=behaviour).tick()
        found = ledger.judge.verdict(asked.turn.id)
    assert found is not None
    assert (found.score, found.source) == (score, source)


@pytest.mark.anyio
async def test_as_a_judge_of_its_own_it_can_be_measured() -> None:
    assert (await BehaviourJudge().judge(case("And the unmatched counts?"))).score == -0.5
    assert (await BehaviourJudge().judge(case("Thanks!"))).score is None


@pytest.mark.slow
def test_on_voices_that_it_was_not_tuned_on_it_is_right_nine_times_in_ten() -> None:
    held = [
        row
        for row in read_files(VOICES)
        if isinstance(row, LabelledRow) and hashlib.sha256(row.voice.encode()).digest()[0] % 2
    ]
    said = [row for row in held if asks_again(row.request, row.reply, row.next)]
    right = [row for row in said if row.score == -1]
    assert len(said) >= 35
    assert len(right) / len(said) >= 0.9
