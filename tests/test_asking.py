"""A message that is probably a correction and not understood: its author is asked, and the answer is theirs to keep."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from judges import rules_judge

from openclaw_rl.app.judges import OWN_LINES, LocalAsker, build_asker
from openclaw_rl.clients.api import ApiClient
from openclaw_rl.clients.chat import TerminalChat
from openclaw_rl.errors import InvalidValue
from openclaw_rl.judge.behaviour import find_doubt, label_of
from openclaw_rl.judge.labelled import LabelledRow, read_files
from openclaw_rl.testing import RunningServer, ScriptedPolicy, fake_config, serving
from openclaw_rl.types import Doubt, Hint

COUNTS = "Merge both files and report the unmatched counts."
REPLY = "I merged the files into merged.csv."


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving(ScriptedPolicy(REPLY)) as server:
        yield server


class Screen:
    """A person at a terminal who is asked where their words are in doubt."""

    def __init__(self, client: ApiClient, folder: Path, *, asks: bool = True) -> None:
        self.noted: list[str] = []
        self.file = folder / OWN_LINES
        asker = LocalAsker(rules_judge(), self.file) if asks else None
        self.talk = TerminalChat(client, say=lambda _: None, note=self.noted.append, look=lambda _: (), asker=asker)

    async def types(self, *lines: str) -> list[str]:
        self.noted.clear()
        for line in lines:
            assert await self.talk.handle(line)
        return list(self.noted)

    @property
    def rows(self) -> list[LabelledRow]:
        return [row for row in read_files(self.file) if isinstance(row, LabelledRow)]


@pytest.mark.anyio
async def test_the_judge_is_in_doubt_where_it_is_silent_and_something_speaks_for_a_complaint() -> None:
    judge = rules_judge()
    again = await find_doubt(judge, COUNTS, REPLY, "unmatched counts, where are they")
    assert again is not None
    assert (again.score, again.hints, again.why) == (-1.0, (), "perhaps the same request again")
    ironic = await find_doubt(judge, "Tea?", "A plant.", "well, how helpful 🙄")
    assert ironic is not None
    assert ironic.why == "perhaps meant in irony"
    assert await find_doubt(judge, "Tea?", "A plant.", "That is wrong.") is None, "it is sure"
    assert await find_doubt(judge, "Tea?", "A plant.", "Now book a table for four.") is None, "nothing speaks for it"


@pytest.mark.anyio
async def test_a_yes_is_explicit_feedback_on_the_turn_before_and_a_line_of_ones_own(
    server: RunningServer, tmp_path: Path
) -> None:
    async with ApiClient(f"{server.url}/v1") as client:
        screen = Screen(client, tmp_path)
        asked = await screen.types(COUNTS, "unmatched counts, where are they")
        assert asked == ["did you mean: the reply before was not what you wanted? /yes or /no"]
        assert await screen.types("/yes") == ["noted as a correction; /why says what becomes of it"]
        assert await screen.types("/yes") == ["nothing was asked"]
    first = next(iter(server.ledger.turns))
    assert [(one.turn, one.score, one.hint, one.source) for one in server.ledger.feedback] == [
        (first, -1.0, None, "explicit")
    ]
    [row] = screen.rows
    assert (row.request, row.reply, row.next, row.label) == (
        COUNTS,
        REPLY,
        "unmatched counts, where are they",
        "complaint",
    )
    assert stat.S_IMODE(screen.file.stat().st_mode) == 0o600


@pytest.mark.anyio
async def test_a_no_is_a_neutral_line_and_no_feedback(server: RunningServer, tmp_path: Path) -> None:
    async with ApiClient(f"{server.url}/v1") as client:
        screen = Screen(client, tmp_path)
        await screen.types(COUNTS, "unmatched counts, where are they", "/no")
    assert server.ledger.feedback == []
    assert [row.label for row in screen.rows] == ["neutral"]


@pytest.mark.anyio
async def test_a_question_lapses_when_the_talk_goes_on(server: RunningServer, tmp_path: Path) -> None:
    async with ApiClient(f"{server.url}/v1") as client:
        screen = Screen(client, tmp_path)
        await screen.types(COUNTS, "unmatched counts, where are they", "Now book a table for four.")
        assert await screen.types("/no") == ["nothing was asked"]
    assert not screen.file.exists()


@pytest.mark.anyio
async def test_nobody_is_asked_unless_it_is_switched_on(server: RunningServer, tmp_path: Path) -> None:
    assert build_asker(fake_config(tmp_path)) is None
    assert build_asker(fake_config(tmp_path, "judge.ask_in_doubt=true")) is not None
    async with ApiClient(f"{server.url}/v1") as client:
        screen = Screen(client, tmp_path, asks=False)
        assert await screen.types(COUNTS, "unmatched counts, where are they") == []
        [unknown] = await screen.types("/yes")
        assert unknown.startswith("there is no /yes")


@pytest.mark.anyio
async def test_a_judge_that_needs_a_model_is_not_waited_for(tmp_path: Path) -> None:
    sets = (
        "judge.ask_in_doubt=true",
        "judge.kind=llm",
        "judge.llm.base_url=http://127.0.0.1:9/v1",
        "judge.llm.model=x",
    )
    asker = build_asker(fake_config(tmp_path, *sets))
    assert asker is not None
    assert await asker.doubt("Tea?", "A plant.", "hm 🙄") is not None


def test_an_answer_makes_a_label(tmp_path: Path) -> None:
    rule = Doubt(score=-1.0, hints=(Hint(text="Be brief, please."),))
    assert [label_of(doubt, meant=True) for doubt in (rule, Doubt(score=-1.0), Doubt(score=1.0))] == [
        "rule",
        "complaint",
        "praise",
    ]
    asker = LocalAsker(rules_judge(), tmp_path / "deep" / OWN_LINES)
    asker.keep("Tea?", "A plant.", "be brief please, maybe", rule, meant=True)
    asker.keep("Tea?", "A plant.", "ok", rule, meant=False)
    rows = [json.loads(line) for line in (tmp_path / "deep" / OWN_LINES).read_text().splitlines()]
    assert [(row["kind"], row["hint"]) for row in rows] == [("rule", "Be brief, please."), ("neutral", None)]


def test_a_doubt_has_a_side() -> None:
    with pytest.raises(InvalidValue):
        Doubt(score=0.0)
