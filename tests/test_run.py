"""A run from Python: started, spoken to, corrected, looked into and stopped."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from learner import BACKEND, BROKEN, FAILING

import openclaw_rl as rl
from openclaw_rl.app import address
from openclaw_rl.app.application import ledger_place
from openclaw_rl.errors import BackendError, ConfigError, InvalidValue, LedgerHeld, ModelRefused, RequestError
from openclaw_rl.experiments.results import note_curves
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import wait_until

FAKES: dict[str, object] = {
    "policy.backend": BACKEND,
    "train.backend": "fake",
    "judge.kind": "rules",
    "run.poll": 0.01,
    "store.sync": "normal",
}
CLOSING = "Please always end with the words 'Hope that helps!'"

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def up(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., rl.Run]:
    """Start a run on fakes, which is stopped after the test; dots of settings are written as ``__``."""

    def start(**settings: object) -> rl.Run:
        given = {name.replace("__", "."): value for name, value in settings.items()}
        run = rl.up("fake", run_dir=tmp_path / "run", settings={**FAKES, **given})
        request.addfinalizer(run.stop)
        return run

    return start


def test_a_run_answers_and_ends_with_its_block(up: Any) -> None:
    with up() as run:
        reply = run.chat("What is tea?")
        assert (reply.text, reply.version, reply.notes) == ("What is tea: yes.", 0, ())
        assert repr(run) == f"<Run of fake in {run.config.run.dir}, {run.url}>"
    assert repr(run).endswith(", stopped>")
    assert address.read(run.config.run.dir) is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((urlsplit(run.url).hostname, urlsplit(run.url).port))
    assert not [one for one in threading.enumerate() if one.name == "openclaw-rl"]


def test_a_correction_in_a_conversation_becomes_a_note_that_the_next_reply_obeys_and_is_learned(up: Any) -> None:
    run = up(train__prompt_distillation__idle=0.1)
    assert run.chat("What is tea?").text == "What is tea: yes."
    run.chat(CLOSING)
    wait_until(lambda: run.notes)
    told = run.chat("What is rain?", session="other")
    assert (told.text.endswith("yes. Hope that helps!"), told.notes) == (True, (1,))
    note = run.wait_until_learned(timeout=60)
    assert (note.number, note.state, note.turn is None) == (1, "learned", False)
    after = run.chat("What is ice?", session=None)
    assert (after.text, after.version, after.notes) == ("What is ice: yes. Hope that helps!", 1, ())
    assert ([one.number for one in run.versions], run.live) == ([0, 1], run.versions[1])
    curve = run.curve()
    assert curve.note == note
    assert curve.series
    assert curve._repr_svg_().startswith("<svg")
    httpx2.post(
        f"{run.url}/control", json={"command": "pause", "reason": "so that it is not learned again"}
    ).raise_for_status()
    back = run.rollback(reason="a try")
    assert back.origin == "rollback"
    wait_until(lambda: run.notes[0].state == "in force")
    assert run.chat("What is ice?", session=None, notes=False).text == "What is ice: yes."
    run.stop()
    assert (len(run.versions), run.live) == (3, back), "the ledger is there after the end"


def test_what_is_asked_aside_belongs_to_no_conversation_and_notes_can_be_left_out(up: Any) -> None:
    run = up(notes__enabled=True, train__prompt_distillation__enabled=False)
    note = run.add_note(CLOSING)
    assert (note.state, run.notes) == ("in force", (note,))
    assert run.chat("What is tea?", session=None).text.endswith("Hope that helps!")
    assert run.chat("What is tea?", session=None, notes=False).text == "What is tea: yes."
    first = run.chat("What is tea?", session="s", train=False)
    run.feedback(first, thumb="down", comment="shorter")
    run.feedback(first.turn, score=0.5)
    with LedgerReader(ledger_place(run.config)) as ledger:
        assert [(one.score, one.hint) for one in ledger.feedback(first.turn)] == [(-1.0, "shorter"), (0.5, None)]


def test_several_threads_may_ask_at_once(up: Any) -> None:
    run, replies = up(), dict[int, str]()

    def ask(number: int) -> None:
        replies[number] = run.chat(f"What is {number}?", session=str(number)).text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert replies == {number: f"What is {number}: yes." for number in range(8)}


def test_what_cannot_start_is_said_with_the_error_of_the_command(up: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train.batch_sise.*batch_size.*argument"):
        up(train__batch_sise=4)
    with pytest.raises(ModelRefused, match="it needs 64 GiB"):
        up(policy__backend=BROKEN)
    run = up()
    with pytest.raises(LedgerHeld):
        rl.up("fake", run_dir=tmp_path / "run", settings=FAKES)
    run.stop()
    with pytest.raises(BackendError, match="this run has stopped; start another with openclaw_rl.up"):
        run.chat("What is tea?")
    assert isinstance(up().chat("What is tea?"), rl.ApiReply), "nothing of it is in the way of another"


def test_waiting_for_a_note_ends_where_none_comes_or_nobody_trains(up: Any) -> None:
    run = up(train__backend=FAILING, train__prompt_distillation__idle=0.1)
    with pytest.raises(TimeoutError, match="there is no note yet after 0 seconds"):
        run.wait_until_learned(timeout=0)
    with pytest.raises(InvalidValue, match="there is none yet; correct a reply, or call add_note"):
        run.curve()
    note = run.add_note(CLOSING)
    assert run.curve(note).series == {"distance left": []}
    with pytest.raises(BackendError, match="note 1 is not learned: the trainer fails: .*out of memory"):
        run.wait_until_learned(note, timeout=60)


def test_a_refused_request_is_raised_and_the_run_goes_on(up: Any) -> None:
    run = up()
    with pytest.raises(RequestError, match="temperature"):
        run.chat("What is tea?", temperature=-1)
    assert run.chat("What is tea?").text == "What is tea: yes.", "the refused message is not in the conversation"


def test_a_script_that_forgets_to_stop_its_run_ends_cleanly(tmp_path: Path) -> None:
    script = f"import openclaw_rl as rl\nrun = rl.up('fake', run_dir='run', settings={FAKES!r})\nprint(run.chat('What is tea?').text)"
    words = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "What is tea: yes.\n", "")
    assert not (tmp_path / "run" / "server.json").exists()


def test_importing_the_package_starts_and_loads_nothing() -> None:
    code = "import sys, openclaw_rl as rl; print('up' in dir(rl), sorted({'asyncio', 'pydantic', 'httpx2', 'openclaw_rl.run'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"


def test_the_curve_of_a_note_goes_on_over_its_trainings() -> None:
    rows = [
        {"measured_after": [0, 4], "met": [0, 3], "held_back": 4, "sampled": [[4, 1, 2]], "kl": [2.0, 1.0], "steps": 4},
        {"measured_after": [2], "met": [4], "held_back": 4, "sampled": [], "kl": [0.5], "steps": 2},
    ]
    held = [(0, 0.0), (4, 0.75), (6, 1.0)]
    assert note_curves(rows) == {"held-back prompts": held, "distilled prompts": [(4, 0.5)]}
    unknown = [{**row, "met": [None] * len(row["met"])} for row in rows]  # type: ignore[arg-type]
    assert note_curves(unknown) == {"distance left": [(0, 1.0), (4, 0.5), (6, 0.25)]}


@pytest.mark.slow
def test_the_embedded_model_answers_from_python(tmp_path: Path) -> None:
    with rl.up("embedded", preset="cpu-demo", run_dir=tmp_path / "run") as run:
        reply = run.chat("What is the capital of France?", max_tokens=24, temperature=0, seed=0)
        assert "Paris" in reply.text
        assert run.versions[0].base == "embedded"
