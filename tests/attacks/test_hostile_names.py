"""Names and texts that are chosen to break a store: each comes back as it was, alone, or is refused with its field."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from openclaw_rl.errors import InvalidValue, NotInLedger
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.ports import GateDecision
from openclaw_rl.store import (
    CollectLedger,
    DeletionLedger,
    JudgeLedger,
    LedgerReader,
    NotesLedger,
    ServeLedger,
    ServerPlace,
    TrainLedger,
)
from openclaw_rl.testing import make_completion, make_outcome, make_turn, make_verdict
from openclaw_rl.types import Feedback, GroupKey, Hint, SessionReward, Step, Turn, Version
from openclaw_rl.types.messages import LONGEST_NAME
from openclaw_rl.views import lineage

HOSTILE = (
    "'; DROP TABLE turns; --",
    '"user"',
    "%",
    "_",
    "a%",
    "a_",
    "ab",
    "?1 $1 ?",
    "a\0",
    "a",
    "A",
    "\x1a0",
    "\0",
    "line\nline\r\n",
    "../../etc/passwd",
    "..",
    "👩\u200d👩\u200d👧 \u00e9",
    "👩\u200d👩\u200d👧 e\u0301",
    "\u202egnp.exe",
    "NULL",
    "",
    " ",
    "env",
    "Env:one",
    "env:one",
    "x" * LONGEST_NAME,
    "x" * (LONGEST_NAME - 1),
)
HALF = "half \ud83d"
LONG = Random(1).randbytes(50_000).hex()  # nothing that compresses to a length an index takes


@pytest.fixture
def talked(place: Path | ServerPlace) -> dict[str, Turn]:
    """One turn for each name, which is its user's, its session's, its group's and its client's and what was said."""
    with ServeLedger(place, sync="normal") as serve:
        turns = {name: _turn(name) for name in HOSTILE}
        for turn in turns.values():
            serve.add_turn(turn)
    return turns


def _turn(name: str) -> Turn:
    completion = make_completion(f"you said <{name}>")
    return make_turn(f"<{name}>", user=name, session=name, group=name, client=name, completion=completion)


def test_each_name_has_its_own_turn_and_no_other(place: Path | ServerPlace, talked: dict[str, Turn]) -> None:
    with LedgerReader(place) as ledger:
        for name, turn in talked.items():
            assert ledger.turn(turn.id) == turn
            assert ledger.session(name, name) == [turn.id], repr(name)
            assert ledger.session_users(name) == [name]
            assert [one.id for one in ledger.latest_turns(name, session=name, limit=9)] == [turn.id]
            assert [one.id for one in ledger.latest(name, before=None, limit=9)] == [turn.id]
            assert not ledger.has_session(name, f"{name}!")
        assert [key.session for key in ledger.sessions()] == list(talked)
        assert sorted(ledger.users()) == sorted(talked)
        assert ledger.counts()["turns"] == len(HOSTILE) == 27


def test_a_search_finds_its_words_and_takes_none_of_them_for_a_pattern(
    place: Path | ServerPlace, talked: dict[str, Turn]
) -> None:
    with LedgerReader(place) as ledger:

        def found(words: str) -> set[str]:
            return {line.turn.id for line in ledger.saying(None, words, before=None, limit=99) if line.said is not None}

        for name, turn in talked.items():
            alike = {other.id for text, other in talked.items() if f"<{name}>".lower() == f"<{text}>".lower()}
            assert turn.id in found(f"<{name}>"), repr(name)
            assert found(f"<{name}>") == alike, repr(name)
        assert found(HALF) == found(LONG + "!") == set()


def test_sessions_of_hostile_names_end_are_paid_and_leave_training_one_by_one(
    place: Path | ServerPlace, talked: dict[str, Turn]
) -> None:
    with ServeLedger(place, sync="normal") as serve, CollectLedger(place) as collect:
        for place_in_line, name in enumerate(HOSTILE):
            serve.add_ending(name, name)
            serve.add_optout(name, name)
            assert serve.opted_out(name, name)
            assert not serve.opted_out(name, f"{name}!")
            assert serve.add_reward(SessionReward(session=name, user=name, score=place_in_line / 100))
        assert [(one.ending.session, one.ending.user) for one in collect.new_endings(99)] == [
            (name, name) for name in HOSTILE
        ]


def test_deleting_a_session_takes_no_other_with_it(place: Path | ServerPlace, talked: dict[str, Turn]) -> None:
    left = dict(talked)
    with DeletionLedger(place) as ledger:
        for name in ("%", "_", "a\0", "..", "'; DROP TABLE turns; --", "👩\u200d👩\u200d👧 \u00e9"):
            assert ledger.delete_session(name, name, by="test").turns == 1
            gone = left.pop(name)
            with pytest.raises(NotInLedger, match="was deleted with its session"):
                ledger.turn(gone.id)
            assert ledger.session(name, name) == []
            assert {turn for name in left for turn in ledger.session(name, name)} == {one.id for one in left.values()}
            again = ledger.deletion(name, name)
            assert again is not None
            assert again.turns == 1


def test_environments_are_told_from_people_by_their_exact_prefix(
    place: Path | ServerPlace, talked: dict[str, Turn]
) -> None:
    """Env:one is a person: SQLite's LIKE would take it for an environment, PostgreSQL's would not."""
    turns = [talked[name] for name in ("env", "Env:one", "env:one")]
    with CollectLedger(place) as collect, JudgeLedger(place) as judge:
        collect.settle([make_outcome(turn, session=turn.session) for turn in turns], [], turns_read=len(HOSTILE))
        judge.add_verdicts([make_verdict(turn, 1.0) for turn in turns], [])
        assert [one.user for one in judge.scored(9)] == ["env", "Env:one"]
        assert {one.user for one in judge.scores(9)} == {"env", "Env:one"}
        assert judge.received()[0].scored == len(judge.score_marks(None, 9)) == 2


def test_groups_of_hostile_names_wait_apart(place: Path | ServerPlace, talked: dict[str, Turn]) -> None:
    with CollectLedger(place) as collect, JudgeLedger(place) as judge, TrainLedger(place, sync="normal") as train:
        outcomes = [make_outcome(turn, session=turn.session, ended="done") for turn in talked.values()]
        collect.settle(outcomes, [], turns_read=len(HOSTILE))
        with ServeLedger(place, sync="normal") as serve:
            for name in HOSTILE:
                serve.add_reward(SessionReward(session=name, user=name, score=1.0))
        assert len(judge.unjudged(99)) == len(HOSTILE)
        judge.add_verdicts([make_verdict(turn, 1.0, source="environment") for turn in talked.values()], [])
        groups = train.waiting(99).groups
        named = {name for name in HOSTILE if name}  # a turn whose group is no name is of none
        assert set(groups) == {GroupKey(name, name) for name in named}
        assert all(len(group.steps) == 1 for group in groups.values())


def test_notes_and_switches_are_their_users_own(place: Path | ServerPlace, talked: dict[str, Turn]) -> None:
    with NotesLedger(place) as ledger:
        book = NotesBook(ledger)
        for name in HOSTILE:
            text = f"Say {name[:99]!r} first: ' \" % _ \0 \x1a0 👩."
            book.add(NewNote(user=name, text=text, by="user", reason=f"for {name}"))
            [note] = book.in_force(name)
            assert (note.user, note.text) == (name, text)
        book.enable("%", False, reason="for a test")
        assert [name for name in HOSTILE if not book.in_force(name)] == ["%"]


def test_steps_versions_and_the_gate_keep_hostile_words_as_they_are(place: Path | ServerPlace) -> None:
    turn = make_turn("'; --")
    words = "'; -- \0 % \x1a0 👩 \ud83d"
    with ServeLedger(place, sync="normal") as serve, TrainLedger(place, sync="normal") as train:
        serve.add_turn(turn)
        version = Version(number=1, parent=0, base="../../b'; --", adapter="/tmp/..", step=1, state="live", note="\0 %")
        train.add_version(Version(number=0, parent=None, base="b", adapter=None, step=None, state="live"))
        train.add_step(Step(number=1, turns=(turn.id,), metrics={"'%\0": 1.0}, seconds=1.0), version)
        assert train.step(1).metrics == {"'%\0": 1.0}
        assert (train.version(1).base, train.version(1).note) == (version.base, version.note)
        evidence = {"examples": [{"turn": turn.id, "candidate": words}]}
        decision = GateDecision(version=1, against=0, decision="promoted", reason="%", evidence=evidence, seconds=1.0)
        train.add_gate_decision(decision)
        assert train.replays(turn.id)[0].evidence == evidence


# --- what no store takes ---


@pytest.mark.parametrize("field", ["user", "session", "group"])
@pytest.mark.parametrize(("name", "why"), [(HALF, "half a character"), (LONG, "100000 bytes; at most 1000")])
def test_a_name_that_no_store_takes_is_refused_with_its_field(
    place: Path | ServerPlace, field: str, name: str, why: str
) -> None:
    """Of 100,000 bytes PostgreSQL's index refuses the row, which looked like a server that cannot be reached."""
    good = make_turn()
    with ServeLedger(place, sync="normal") as serve:
        with pytest.raises(InvalidValue, match=f"^{'grp' if field == 'group' else field}: .*{why}"):
            serve.add_turn(make_turn(**{field: name}))
        assert serve.trouble is None, "nothing is wrong with the store"
        serve.add_turn(good)
        assert serve.turn(good.id) == good
        assert serve.counts()["turns"] == 1


def test_every_writer_refuses_it_and_goes_on(place: Path | ServerPlace) -> None:
    turn = make_turn()
    with ServeLedger(place, sync="normal") as serve, CollectLedger(place) as collect, NotesLedger(place) as notes:
        serve.add_turn(turn)
        book = NotesBook(notes)
        for name in (HALF, LONG):
            for write, field in (
                (lambda name=name: serve.add_ending(name, "u1"), "session"),
                (lambda name=name: serve.add_optout(name, "u1"), "session"),
                (lambda name=name: serve.add_reward(SessionReward(session=name, user="u1", score=1.0)), "session|text"),
                (lambda name=name: serve.add_feedback(Feedback(turn=name, score=1.0)), "turn"),
                (lambda name=name: collect.settle([make_outcome(turn, session=name)], []), "session"),
                (lambda name=name: book.add(NewNote(user=name, text="Be brief.", by="user", reason="")), "user|text"),
                (lambda name=name: book.enable(name, False, reason=""), "user|text"),
            ):
                with pytest.raises(InvalidValue, match=f"^({field}): "):
                    write()
        with pytest.raises(InvalidValue, match=r"^hint: .*half a character"):
            serve.add_feedback(Feedback(turn=turn.id, hint=HALF))
        serve.add_feedback(Feedback(turn=turn.id, hint=LONG))
        assert serve.feedback(turn.id)[0].hint == LONG
        assert collect.new_endings(9) == []
        assert collect.outcome(turn.id) is None
        collect.settle([make_outcome(turn)], [], turns_read=1)
        assert collect.outcome(turn.id) is not None


def test_every_question_about_it_is_refused_or_answered_with_nothing(place: Path | ServerPlace) -> None:
    with ServeLedger(place, sync="normal") as ledger:
        ledger.add_turn(make_turn(session="s"))
        for ask in (
            lambda: ledger.turn(HALF),
            lambda: ledger.session(HALF, "u1"),
            lambda: ledger.latest(HALF, before=None, limit=9),
            lambda: ledger.notes(HALF),
            lambda: ledger.replays(HALF),
            lambda: ledger.deletion("s", HALF),
        ):
            with pytest.raises(InvalidValue, match="^text: the text holds half a character"):
                ask()
        for number in (2**63, -(2**64), 10**30):
            for ask in (lambda n=number: ledger.version(n), lambda n=number: ledger.note(n)):
                with pytest.raises(InvalidValue, match="^number: it has more than 64 bits"):
                    ask()
        assert ledger.deletion(HALF, "u1") is None
        assert (ledger.session(LONG, LONG), ledger.notes(LONG), ledger.feedback(LONG)) == ([], [], ())
        for name in ("9" * 5_000, "9" * 30, "-1", "٣", "1e3", LONG):
            with pytest.raises((NotInLedger, InvalidValue)):
                lineage.either(ledger, name)


def test_half_a_character_in_what_was_said_comes_back_as_it_was(place: Path | ServerPlace) -> None:
    """A model may write one, and its turn was answered: it is kept."""
    turn = make_turn(HALF, completion=make_completion(f"so: {HALF}"))
    verdict = make_verdict(turn, -1.0, hints=(Hint(text=HALF),))
    with ServeLedger(place, sync="normal") as serve, CollectLedger(place) as collect, JudgeLedger(place) as judge:
        serve.add_turn(turn)
        assert serve.turn(turn.id) == turn
        assert [line.said for line in serve.saying(None, "HALF", before=None, limit=9)] == [HALF]
        collect.settle([make_outcome(turn)], [], turns_read=1)
        judge.add_verdicts([verdict], [])
        found = judge.verdict(turn.id)
        assert found is not None
        assert found.hints == verdict.hints
