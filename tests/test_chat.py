"""A person at a terminal: talks, corrects, asks why, and sees the next version take over. The server is real."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_line import until, up, walking

from openclaw_rl.backends.fake import write_adapter
from openclaw_rl.cli.chat import _looker
from openclaw_rl.clients.api import ApiClient
from openclaw_rl.clients.chat import TerminalChat, describe_turn
from openclaw_rl.errors import BackendDown, NotAllowed, RequestError
from openclaw_rl.store import TrainLedger
from openclaw_rl.testing import ScriptedPolicy, serving
from openclaw_rl.types import Version

WISH = "Please keep it under 30 words."
PLAIN = "Please answer in under 30 words."
UNSEEN = ("gate.mode=off", "monitor.mode=off", "notes.enabled=false")


class Screen:
    """What a person sees."""

    def __init__(self, client: ApiClient, *, look: Callable[[str], Any] = lambda _: ()) -> None:
        self.said: list[str] = []
        self.noted: list[str] = []
        self.talk = TerminalChat(client, say=self.said.append, note=self.noted.append, look=look)

    async def types(self, *lines: str) -> str:
        """What is said in answer to these lines."""
        self.said.clear()
        self.noted.clear()
        for line in lines:
            assert await self.talk.handle(line)
        return "".join(self.said)


@pytest.mark.anyio
async def test_a_correction_is_followed_from_the_words_to_the_version_that_knows_it(tmp_path: Path) -> None:
    async with up(tmp_path, *UNSEEN) as run, ApiClient(f"{run.client.base_url}/v1/") as api:
        app, client, reader = run.app, run.client, run.ledger
        screen = Screen(api, look=_looker(app.config))
        await screen.talk.greet()
        assert screen.noted == [f"fake at {client.base_url}/v1, version 0; /help lists the commands"]

        assert await screen.types("What is tea?") == "You said: What is tea?\n"
        assert await screen.types("/why") == ""
        assert screen.noted == ["nothing has been corrected yet: answer a reply, or say /good, /bad or /fix TEXT"]
        await screen.types(f"/fix {WISH}")
        assert screen.noted == ["noted as a correction; /why says what becomes of it"]
        assert "not judged yet: it waits for what comes after it\n" in await screen.types("/why")

        await screen.types("And rain?")
        await until(lambda: app.policy is not None and app.policy.live == 1)
        assert await screen.types("And snow?") == f"You said: And snow? [learned: {WISH}]\n"
        assert screen.noted == ["version 1 has taken over (before: 0)"]
        turn = reader.session(reader.turn(screen.talk._turns[-1]).session or "", "local")[0]
        assert (await screen.types("/why")).splitlines() == [
            f"turn {turn}, answered by version 0: What is tea?",
            "judged -1 (explicit): a score of -1 was given",
            f"hint (rule): {WISH}",
            "used by step 1, which made version 1 (live)",
        ]
        assert await screen.types("/version") == "fake, version 1, the last reply came from version 1\n"


@pytest.mark.anyio
async def test_words_alone_are_a_correction_of_the_reply_before(tmp_path: Path) -> None:
    async with up(tmp_path, *UNSEEN) as run, ApiClient(f"{run.client.base_url}/v1") as api:
        screen = Screen(api, look=_looker(run.app.config))
        await screen.types("Tell me about tea", WISH)
        first = screen.talk._turns[0]
        await until(lambda: run.ledger.trained_in(first) is not None)
        why = await screen.types("/why")
        assert why.startswith(f"turn {first}, answered by version 0: Tell me about tea\njudged ")
        assert f"hint (rule): {WISH}\nused by step 1" in why


@pytest.mark.anyio
async def test_a_person_is_told_of_a_note_and_sees_and_changes_it(tmp_path: Path) -> None:
    async with up(tmp_path, "train.batch_size=1000") as run, ApiClient(f"{run.client.base_url}/v1") as api:
        screen = Screen(api)
        await screen.talk.greet()
        assert await screen.types("/notes") == "no notes yet: tell me how you would like replies, and I keep to it\n"
        await screen.types("Tell me about tea", WISH)
        await until(lambda: bool(run.ledger.notes()))
        assert await screen.types("And rain?") == f"You said: And rain?\n\n{PLAIN}\n"
        told = f"noted: {WISH} (put as: {PLAIN})"
        assert screen.noted in ([told], [])  # it may have been told of with the reply before
        assert await screen.types("/notes") == f"   1  in force   {WISH} (put as: {PLAIN})\n"
        assert await screen.types("/notes off 1") == f"   1  off        {WISH} (put as: {PLAIN})\n"
        assert await screen.types("And snow?") == "You said: And snow?\n"
        assert await screen.types("/notes of 1") == ""
        assert screen.noted == ["say /notes, or /notes off, on, rm, yes, here or no NUMBER"]
        assert (
            await screen.types("/notes rm 1") == "no notes yet: tell me how you would like replies, and I keep to it\n"
        )


@pytest.mark.anyio
@pytest.mark.parametrize(("answer", "state"), [("yes", "in force"), ("here", "declined"), ("no", "declined")])
async def test_a_person_is_asked_once_whether_a_wish_is_for_all_replies(
    tmp_path: Path, answer: str, state: str
) -> None:
    async with up(tmp_path, "train.batch_size=1000") as run, ApiClient(f"{run.client.base_url}/v1") as api:
        screen = Screen(api)
        await screen.talk.greet()
        lines = list[str]()
        for message in ("Tell me about tea", "Shorter, please.", "And rain?", "And snow?"):
            await screen.types(message)
            lines += screen.noted
            if message == "Shorter, please.":
                await until(lambda: bool(run.ledger.notes()))
        [note] = run.ledger.notes()
        question = f'did you mean "{note.text}" for all replies? /notes yes 1, /notes here 1 (only here) or /notes no 1'
        assert lines == [question]
        await screen.types(f"/notes {answer} 1")
        assert run.ledger.note(1).state == state


@pytest.mark.anyio
async def test_a_new_conversation_ends_the_old_one_and_forgets_it() -> None:
    with serving(ScriptedPolicy("Yes.")) as server:
        async with ApiClient(f"{server.url}/v1") as api:
            screen = Screen(api)
            assert await screen.types("one", "two", "/new", "three", " /good is a word") == "Yes.\n" * 4
            prompts = [turn.prompt.messages for turn in server.ledger.turns.values()]
            assert [len(messages) for messages in prompts] == [1, 3, 1, 3]
            assert prompts[3][-1].content == "/good is a word"
            sessions = [turn.session for turn in server.ledger.turns.values()]
            assert (sessions[0] == sessions[1], sessions[2] == sessions[3], sessions[0] == sessions[2]) == (
                True,
                True,
                False,
            )
            assert server.ledger.endings == [(sessions[0], "local")]
            assert {turn.declared for turn in server.ledger.turns.values()} == {"main"}


@pytest.mark.anyio
async def test_thumbs_go_to_the_last_reply_and_need_one() -> None:
    with serving(ScriptedPolicy("Yes.")) as server:
        async with ApiClient(f"{server.url}/v1") as api:
            screen = Screen(api)
            await screen.types("/good", "/fix ", "/frown")
            assert screen.noted[0] == "there is no reply yet in this conversation"
            assert screen.noted[1].startswith("say what would have made it better")
            assert screen.noted[2].startswith("there is no /frown; known: /good, /bad, /fix, /notes, /why")
            await screen.types("one", "/good", "two", "/bad")
            given = [(said.turn, said.score) for said in server.ledger.feedback]
            assert given == list(zip(server.ledger.turns, (1.0, -1.0), strict=True))
            assert "/version " in await screen.types("/help")
            assert not await screen.talk.handle("/quit")


@pytest.mark.anyio
async def test_what_goes_wrong_is_said_with_its_remedy() -> None:
    with serving(ScriptedPolicy("Yes."), keys={"sk-1": "u1"}) as server:
        url = f"{server.url}/v1"
        async with ApiClient(url, key_remedy="give it with --key") as api:
            with pytest.raises(NotAllowed, match="give it with --key"):
                await Screen(api).talk.greet()
        async with ApiClient(url, key="sk-1", model="toy@x") as api:
            good = Screen(api)
            await good.talk.greet()
            with pytest.raises(RequestError, match="no model is called 'toy@x'"):
                await good.types("hi")
        async with ApiClient(url, key="sk-1") as api:
            server.policy.break_after = 2
            broken = Screen(api)
            with pytest.raises(BackendDown, match="the reply broke off: the engine died"):
                await broken.types("hi")
            assert "".join(broken.said) == "Ye\n"
            server.policy.break_after = None
            assert await broken.types("hi") == "Yes.\n"
            assert len(server.ledger.last.prompt.messages) == 1, "what broke off is not part of the conversation"


def test_a_turn_that_was_dropped_or_made_no_version_says_so() -> None:
    turn = {
        "id": "t",
        "version": 3,
        "prompt": {"messages": [{"role": "user", "content": "word " * 20}]},
        "kind": "main",
    }
    verdict = {"score": None, "source": "judge", "note": "", "hints": []}
    dropped = {**turn, "verdict": verdict, "step": None, "dropped": {"reason": "no signal", "detail": ""}}
    assert describe_turn(dropped, []) == [
        f"turn t, answered by version 3: {'word ' * 11}word…",
        "judged no opinion (judge)",
        "not trained: no signal",
    ]
    assert describe_turn({**turn, "verdict": None}, [])[1] == "not judged yet: it waits for the judge"
    assert describe_turn({**dropped, "dropped": None}, [])[-1] == "not trained yet: it waits for a batch"
    assert describe_turn({**dropped, "step": 4}, [])[-1] == "used by step 4, which made no version"


def chat(*words: str, typed: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openclaw_rl", "chat", *words]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, env=environ or None)


@pytest.mark.slow
def test_it_works_in_a_pipe_and_its_exit_code_tells(tmp_path: Path) -> None:
    with serving(ScriptedPolicy("Hello there.")) as server:
        done = chat("--url", f"{server.url}/v1", "--rl-buffer-dir", str(tmp_path), typed="hi\n/good\n/why\n")
        assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "noted: the last reply was good")
        hello, reason, remedy = done.stdout.splitlines()
        assert hello == "Hello there."
        assert reason == f"its state cannot be read from here: there is no ledger at {tmp_path}/ledger.db"
        assert remedy == "name the run with --run-dir"
        assert [said.score for said in server.ledger.feedback] == [1.0]
        assert len(server.ledger.endings) == 1
        refused = chat("--url", f"{server.url}/v1", "--model", "toy@x", typed="hi\n")
        assert refused.returncode == 1
        assert "error: no model is called 'toy@x'" in refused.stderr


ATTENTIVE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("openclaw_rl", run_name="__main__")
"""
"""as from a terminal: a suite that runs in the background hands on that interrupts are ignored"""


def test_an_interrupt_stops_the_reply_and_the_conversation_goes_on() -> None:
    policy = ScriptedPolicy("Hello there.")
    policy.stall_after = 3
    with serving(policy) as server:
        command = [sys.executable, "-c", ATTENTIVE, "chat", "--url", f"{server.url}/v1"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as person:
            assert person.stdin is not None
            assert person.stdout is not None
            person.stdin.write("hi\n")
            person.stdin.flush()
            assert person.stdout.read(3) == "Hel"
            person.send_signal(signal.SIGINT)
            assert policy.closed.wait(30), "the server hears of it"
            policy.stall_after = None
            said, noted = person.communicate("again\n", timeout=60)
    assert (said, noted.splitlines()[-1], person.returncode) == ("\nHello there.\n", "stopped", 0)


def test_no_server_is_said_with_the_command_that_starts_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        done = chat("--url", url, typed="hi\n")
    assert done.returncode == 1
    assert f"no server answers at {url}; start one with 'openclaw-rl up'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.anyio
async def test_after_a_restart_every_version_of_the_ledger_answers_by_its_number(tmp_path: Path) -> None:
    with TrainLedger(tmp_path / "ledger.db", sync="normal") as ledger:
        ledger.add_version(Version(number=0, parent=None, base="fake", state="live"))
        for number in (1, 2, 3):
            adapter = str(tmp_path / f"v{number}")
            write_adapter(adapter, rules=[f"rule {number}"], turns=[], manifest={})
            ledger.add_version(Version(number=number, parent=number - 1, base="fake", adapter=adapter))
        ledger.set_state(2, "live", "promoted")
    async with walking(tmp_path) as walk:

        async def ask(model: str) -> tuple[int, str]:
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
            done = await walk.client.post("/v1/chat/completions", json=body)
            said = done.json()
            return done.status_code, said["error"]["message"] if "error" in said else said["choices"][0]["message"][
                "content"
            ]

        assert await ask("fake") == (200, "You said: hi [learned: rule 2]")
        assert await ask("fake@1") == (200, "You said: hi [learned: rule 1]")
        assert await ask("fake@3") == (200, "You said: hi [learned: rule 3]"), "a candidate can be tried, too"
        assert await ask("fake@0") == (200, "You said: hi")
        assert await ask("fake@9") == (404, "no version 9; known: [0, 1, 2, 3]")
        write_adapter(str(tmp_path / "v4"), rules=["rule 4"], turns=[], manifest={})
        walk.app._ledgers["train"].add_version(
            Version(number=4, parent=2, base="fake", adapter=str(tmp_path / "v4"), state="candidate")
        )
        assert await walk.app.loops["serve"].tick() == 0
        assert await ask("fake@4") == (200, "You said: hi [learned: rule 4]")
