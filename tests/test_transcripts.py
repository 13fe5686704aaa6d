"""Recorded conversations come in whole, go out unchanged, and a bad one harms no other."""

from __future__ import annotations

import io
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.errors import ImportRefused
from openclaw_rl.store import ImportLedger, LedgerReader
from openclaw_rl.testing import TemporaryLedger, make_message
from openclaw_rl.views import transcripts

pytestmark = pytest.mark.anyio

TALK: dict[str, Any] = {
    "session_id": "user_session_abc123",
    "turns": [
        {"type": "main", "prompt": "Hi", "response": "Hello there!", "next_state": "Too long.", "trainable": True},
        {"type": "main", "prompt": "Too long.", "response": "Hey.", "next_state": "Thanks", "trainable": True},
        {"type": "side", "prompt": "Title?", "response": "Greeting", "trainable": False},
    ],
}


async def taken(path: Path, ledger_path: Path, **more: Any) -> transcripts.ImportReport:
    with ImportLedger(ledger_path, sync="normal") as ledger:
        return await transcripts.import_file(ledger, path, FakePolicy(), user="u1", **more)


def exported(ledger_path: Path) -> list[Any]:
    with LedgerReader(ledger_path) as ledger:
        return list(transcripts.export(ledger))


FORMS = {
    "one object": lambda rows: json.dumps(rows[0], indent=2),
    "a list": lambda rows: json.dumps(rows, indent=1),
    "lines": lambda rows: "\n\n".join(json.dumps(row) for row in rows) + "\n",
    "lines with a byte-order mark": lambda rows: "\ufeff" + "\n".join(json.dumps(row) for row in rows),
}


@pytest.mark.parametrize("form", FORMS)
async def test_every_form_goes_in_and_comes_out_unchanged(tmp_path: Path, ledger_path: Path, form: str) -> None:
    rows = [TALK] if form == "one object" else [TALK, {**TALK, "session_id": "other", "topic": "kept"}]
    file = tmp_path / "talk.json"
    file.write_text(FORMS[form](rows))
    report = await taken(file, ledger_path)
    assert (report.sessions, report.turns, report.refused) == (len(rows), 3 * len(rows), [])
    assert exported(ledger_path) == rows


async def test_a_conversation_goes_on_where_its_prompt_is_the_next_state_before(
    tmp_path: Path, ledger_path: Path
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(TALK))
    await taken(file, ledger_path)
    with LedgerReader(ledger_path) as ledger:
        turns = [ledger.turn(one) for one in ledger.session("user_session_abc123", "u1")]
        assert [m.content for m in turns[1].prompt.messages] == ["Hi", "Hello there!", "Too long."]
        assert [m.content for m in turns[2].prompt.messages] == ["Title?"]
        assert all(turn.completion.scored for turn in turns), "these log-probs were computed, not sampled"
        assert len(turns[0].completion.logprobs) == len(turns[0].completion.reply_tokens) == len("Hello there!") + 1
        assert ledger.recorded(turns[0].id).next_state == (make_message("user", "Too long."),)
        assert (turns[2].declared, turns[2].trainable) == ("side", False)


BAD = {
    '{"session_id": "", "turns": [{"prompt": "a", "response": "b"}]}': "session_id: must be a text",
    '{"session_id": "x", "turns": []}': "turns: must be a list that is not empty",
    '{"session_id": "x", "turns": [{"prompt": "a"}]}': r"turns\[0\].response: must be a text",
    '{"session_id": "x", "turns": [{"prompt": "a", "response": "b"}, {"type": "odd", "prompt": "a", "response": "b"}]}': r"turns\[1\].type: 'odd' is neither",
    '{"session_id": "x", "turns": [{"prompt": "a", "response": "b", "trainable": "yes"}]}': r"turns\[0\].trainable: must be true or false",
    '{"session_id": "x", "turns": [{"prompt": [{"role": "king", "content": "a"}], "response": "b"}]}': "role: 'king' is none of",
    '{"session_id": "x", "turns": [{"prompt": 3, "response": "b"}]}': r"turns\[0\].prompt: must be a text",
    '"just text"': "must be an object",
    '{"session_id": "x", "turns": [': "not JSON",
    "{'single': 1}": "not JSON",
    '{"session_id": "x\ty", "turns": []}': "not JSON: Invalid control character",
}


@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_record_is_named_with_its_line_and_stops_no_other(
    tmp_path: Path, ledger_path: Path, bad: str
) -> None:
    file = tmp_path / "talk.jsonl"
    good = [json.dumps({**TALK, "session_id": name}) for name in ("one", "two")]
    file.write_text("\n".join([good[0], bad, good[1]]))
    report = await taken(file, ledger_path)
    assert len(report.refused) == 1
    assert report.refused[0].startswith(f"{file}:2: "), report.refused
    assert re.search(BAD[bad], report.refused[0]), report.refused
    assert [row["session_id"] for row in exported(ledger_path)] == ["one", "two"]


async def test_a_bad_turn_takes_its_whole_conversation_with_it_and_nothing_else(
    tmp_path: Path, ledger_path: Path
) -> None:
    file = tmp_path / "talk.jsonl"
    half = {"session_id": "half", "turns": [TALK["turns"][0], {"prompt": "x"}]}
    file.write_text("\n".join(json.dumps(row) for row in (half, TALK)))
    await taken(file, ledger_path)
    assert exported(ledger_path) == [TALK]


async def test_strict_refuses_the_file_before_anything_is_written(tmp_path: Path, ledger_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps(TALK) + '\n{"session_id": 3}')
    with pytest.raises(ImportRefused, match=r"talk.jsonl:2: session_id: .*; nothing was imported"):
        await taken(file, ledger_path, strict=True)
    assert exported(ledger_path) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside")  # a thread of another test may draw from it
@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=5),
            st.recursive(st.none() | st.text(max_size=5) | st.integers(), lambda s: st.lists(s, max_size=3)),
            max_size=3,
        ),
        max_size=8,
    ),
    st.integers(1, 40),
    st.booleans(),
)
def test_records_are_cut_apart_the_same_wherever_the_chunks_end(values: list[Any], chunk: int, as_list: bool) -> None:
    text = json.dumps(values) if as_list else "\n".join(json.dumps(value) for value in values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transcripts, "CHUNK", chunk)
        found = list(transcripts.records(io.StringIO(text)))
    assert [record.value for record in found] == values
    assert [record.line for record in found] == ([1] * len(values) if as_list else list(range(1, len(values) + 1)))


@pytest.mark.slow
def test_a_large_file_needs_little_memory_even_with_a_broken_line_early() -> None:
    line = json.dumps({"session_id": "x", "turns": [{"prompt": "p" * 900, "response": "r"}]})

    class Lines(io.TextIOBase):
        """A file of many lines that is never there as a whole."""

        left = 40_000

        def read(self, size: int | None = -1, /) -> str:
            assert size is not None
            assert size >= 0
            count = min(self.left, max(1, size // (len(line) + 1)))
            self.left -= count
            broken = '{"broken": \n' if self.left + count == 40_000 else ""
            return broken + (line + "\n") * count

    tracemalloc.start()
    faults = sum(record.fault is not None for record in transcripts.records(Lines()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert faults == 1
    assert peak < 2_000_000, "40 MB went through"


async def test_a_served_turn_comes_out_with_all_that_is_known_and_goes_in_again(
    tmp_path: Path, ledger_path: Path
) -> None:
    with TemporaryLedger(tmp_path) as ledger:
        ledger.add(-1.0, "Be brief, please.", text="Tell me", outcome={"session": "found"})
    with LedgerReader(ledger_path) as ledger:
        [row] = transcripts.export(ledger)
        [line] = transcripts.training_set(ledger)
    [said] = row["turns"]
    assert (row["session_id"], said["prompt"], said["response"], said["score"]) == ("found", "Tell me", "ok", -1.0)
    assert said["next_state"] == [{"role": "user", "content": "thanks"}]
    assert line["messages"][-1] == {"role": "assistant", "content": "ok"}
    assert line["hints"] == [{"text": "Be brief, please.", "kind": "rule", "vague": False, "reach": "standing"}]
    file = tmp_path / "again.json"
    file.write_text(json.dumps(row))
    report = await taken(file, tmp_path / "second.db")
    assert report.refused == []
    assert exported(tmp_path / "second.db") == [row]
