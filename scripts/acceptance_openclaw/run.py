"""The acceptance run: the real OpenClaw, the real embedded model, real training, and what the ledger says of it all.

    python scripts/acceptance_openclaw/run.py                   two users at once: one without the plugin, one with it
    python scripts/acceptance_openclaw/run.py --only plugin     one of them
    python scripts/acceptance_openclaw/run.py --kill-gateway    OpenClaw's gateways are killed half way
    python scripts/acceptance_openclaw/run.py --kill-server     our server is killed half way

Ends with 0 when every check holds. See `scripted.py` for what is said, and for what of the replies is given.
"""

from __future__ import annotations

import argparse
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from checks import Part, Row, check, session_key, table
from processes import Gateway, Server, installed, plugin_tests
from scripted import AFTER_COMPACTION, AFTER_RESET, FIRST, SECOND, THIRD, Said

from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Message, Turn

NAMES = {"plain": "without the plugin", "plugin": "with the plugin"}
_STAMP = re.compile(r"^\[[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d [A-Za-z0-9+:/_-]+\] ")
_REQUEUED = re.compile(r"^\[Queued user message[^\]]*\]\n(.*?)(?:\n\nContinue the current task .*)?\Z", re.DOTALL)
_RESUMED = re.compile(r"\n?\[System\] Your previous turn was interrupted by a gateway restart[^\n]*")
_TROUBLE = re.compile(r"^(?:⚠|No response from OpenClaw)|request failed|something went wrong", re.IGNORECASE)


@dataclass
class Story:
    """One user with one gateway: what was heard, what went wrong, what is worth telling."""

    name: str
    gateway: Gateway
    heard: list[tuple[str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def talk(self, key: str, said: Sequence[Said]) -> None:
        for each in said:
            self.say(key, each.text)

    def say(self, key: str, text: str) -> None:
        status, reply = self.gateway.say(key, text)
        if not self.hear(key, status, reply):
            self.failed.append(f"{text!r} in {key}: status {status}, {reply[:120]!r}")

    def say_again(self, key: str, text: str) -> None:
        """As a patient person does whom OpenClaw tells to try again while it takes up what a restart cut off."""
        for number in range(1, 4):
            status, reply = self.gateway.say(key, text)
            if self.hear(key, status, reply):
                self.facts["then"] = f"the person said it again{f', {number} times' if number > 1 else ''}"
                return
            time.sleep(10.0)
        self.failed.append(f"{text!r} in {key}, said again: status {status}, {reply[:120]!r}")

    def hear(self, key: str, status: int, reply: str) -> bool:
        """Remember an answer, without the notice that OpenClaw adds to one that ran into its limit."""
        good = status == 200 and not _TROUBLE.search(reply)
        if good:
            self.heard.append((key, reply.partition("\n\n⚠")[0]))
        return good

    def cut(self) -> None:
        """Have OpenClaw compact the first conversation and reset the second."""
        if not self.gateway.call("sessions.compact", "first").get("compacted"):
            self.failed.append("OpenClaw did not compact the first conversation")
        self.gateway.call("sessions.reset", "second")


def at_once(*works: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def talks(stories: Sequence[Story], *parts: tuple[str, Sequence[Said]]) -> list[Callable[[], None]]:
    return [partial(story.talk, key, said) for story in stories for key, said in parts]


def interrupted(stories: Sequence[Story], server: Server, key: str, text: str, kill: str) -> None:
    """All say it; what ``kill`` names dies while it is answered and starts again; who got no answer says it again."""
    _until(lambda: not server.busy(), seconds=60)  # a recap of the message before may still be written
    seen: dict[str, tuple[int, str, float]] = {}
    began = time.monotonic()

    def wait_for_it(story: Story) -> None:
        status, reply = story.gateway.say(key, text)
        seen[story.name] = status, reply, time.monotonic() - began

    threads = [threading.Thread(target=wait_for_it, args=(story,)) for story in stories]
    for thread in threads:
        thread.start()
    _until(lambda: bool(seen) or server.busy(), seconds=60)
    time.sleep(0.5)
    early = set(seen)
    victims = [server] if kill == "server" else [story.gateway for story in stories]
    for victim in victims:
        victim.kill()
    killed = time.monotonic() - began
    for victim in victims:
        victim.start()
    for victim in victims:
        victim.ready()
    back = time.monotonic() - began - killed
    for thread in threads:
        thread.join()
    for story in stories:
        status, reply, took = seen[story.name]
        story.lost.add(text)
        if story.name in early:
            story.failed.append(f"the answer to {text!r} came before the {kill} could be killed")
        story.facts[f"the {kill} was killed"] = f"{killed:.1f} s into a request; it was back {back:.0f} s later"
        story.facts["the client saw"] = f"status {status} after {took:.0f} s: {reply[:70]!r}"
        if not story.hear(key, status, reply):
            _until(lambda: not server.busy(), seconds=60)  # OpenClaw may go on by itself first
            story.say_again(key, text)


def play(folder: Path, entry: Path, names: Sequence[str], *, kill: str | None, fake: bool) -> bool:
    """One run from the first process to the last check, one table for each name; whether every check holds."""
    began = time.monotonic()
    keys = {name: secrets.token_urlsafe(16) for name in names}
    server = Server(folder, keys, fake=fake)
    stories = [
        Story(name, Gateway(folder / name, entry, server, key=keys[name], plugin=name == "plugin")) for name in names
    ]
    try:
        server.start()
        server.ready()
        for story in stories:
            story.gateway.configure()
            story.gateway.start()
        for story in stories:
            story.gateway.ready()
        _hold(stories, server, partial(_tell, began), kill)
        failures, live = server.failures() if kill is None else [], server.version()
    finally:
        for process in (*(story.gateway for story in stories), server):
            process.end()
    print(f"    {time.monotonic() - began:4.0f} s  everything has ended", flush=True)
    held = [_judged(story, server, failures, live, kill) for story in stories]
    return all(held)


def _judged(story: Story, server: Server, failures: Sequence[str], live: int, kill: str | None) -> bool:
    rows, steps = _ledger(server.run / "ledger.db", story.name)
    found = check(
        rows,
        _parts(frozenset(story.lost)),
        plugin=story.name == "plugin",
        heard=story.heard,
        failed=[*story.failed, *failures],
        steps=steps,
        live=live,
    )
    title = f"OpenClaw {NAMES[story.name]}" + (f", the {kill} killed half way" if kill else "")
    print(f"\n{table(title, found, story.facts)}", flush=True)
    return all(each.ok for each in found)


def _parts(lost: frozenset[str]) -> list[Part]:
    return [
        Part(key="first", said=FIRST, cut="compaction"),
        Part(key="first", said=AFTER_COMPACTION),
        Part(key="second", said=SECOND, cut="reset"),
        Part(key="second", said=AFTER_RESET),
        Part(key="third", said=THIRD, again=lost),
    ]


def _hold(stories: Sequence[Story], server: Server, tell: Callable[[str], None], kill: str | None) -> None:
    tell("all are up; two conversations at once with each")
    _together(stories, FIRST, SECOND)
    tell("the third conversation, while the first step is trained")
    at_once(*talks(stories, ("third", THIRD[:1])))
    if kill is None:
        at_once(*talks(stories, ("third", THIRD[1:2])))
    else:
        interrupted(stories, server, "third", THIRD[1].text, kill)
    at_once(*talks(stories, ("third", THIRD[2:])))
    _until(lambda: server.version() >= 1, seconds=300)
    tell(f"version {server.version()} is served; compaction of the first, reset of the second")
    at_once(*(story.cut for story in stories))
    _together(stories, AFTER_COMPACTION, AFTER_RESET)
    tell("the ledger settles")
    _settle(server.run / "ledger.db")


def _together(stories: Sequence[Story], first: Sequence[Said], second: Sequence[Said]) -> None:
    """Both conversations of all at once, after one message alone: the long beginning that all share is read once."""
    stories[0].say("first", first[0].text)
    rest = talks(stories[:1], ("first", first[1:]), ("second", second))
    at_once(*rest, *talks(stories[1:], ("first", first), ("second", second)))


def _tell(began: float, text: str) -> None:
    print(f"    {time.monotonic() - began:4.0f} s  {text}", flush=True)


def _until(true: Callable[[], bool], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not true():
        time.sleep(0.1)


def _settle(path: Path, *, quiet: float = 4.0, seconds: float = 60.0) -> None:
    """Until collect and judge have had nothing to do for a while; late side calls are waited for too."""
    last, since, deadline = "", time.monotonic(), time.monotonic() + seconds
    while time.monotonic() < deadline and time.monotonic() - since < quiet:
        with LedgerReader(path) as ledger:
            now = str([ledger.newest(table) for table in ("turns", "outcomes", "verdicts")])
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.5)


# --- the ledger ---


def _ledger(path: Path, user: str) -> tuple[list[Row], list[tuple[str, ...]]]:
    """The turns of one user, and of each step those that were this user's."""
    with LedgerReader(path) as ledger:
        ids = [row["id"] for row in ledger.rows("SELECT id FROM turns WHERE user = ? ORDER BY seq", user)]
        rows = ledger.rows("SELECT number FROM steps WHERE skipped IS NULL ORDER BY number")
        numbers = [row["number"] for row in rows]
        steps = [tuple(turn for turn in ledger.step(number).turns if turn in set(ids)) for number in numbers]
        return [_row(ledger, ledger.turn(name)) for name in ids], [step for step in steps if step]


def _row(ledger: LedgerReader, turn: Turn) -> Row:
    outcome, verdict = ledger.outcome(turn.id), ledger.verdict(turn.id)
    users = [message.content for message in turn.prompt.messages if message.role == "user"]
    asked = _asked(turn.prompt.messages)
    return Row(
        id=turn.id,
        key=session_key("\n".join(users)),
        tools=bool(turn.prompt.tools),
        asked=_said(asked),
        calls=tuple(call.name for call in turn.completion.reply.tool_calls),
        declared=turn.declared,
        version=turn.completion.version,
        session=outcome.session if outcome else turn.session,
        kind=outcome.kind if outcome else None,
        reason=outcome.kind_reason if outcome else "",
        parent=outcome.parent if outcome else None,
        next_state=tuple((said.role, said.content) for said in outcome.next_state) if outcome else (),
        ended=outcome.ended if outcome else None,
        judged=verdict is not None,
        score=verdict.score if verdict else None,
        hints=tuple(hint.text for hint in verdict.hints) if verdict else (),
        step=ledger.trained_in(turn.id),
        reply=_STAMP.sub("", turn.completion.reply.content),  # one that the model wrote, OpenClaw takes away
        rewritten=bool(_REQUEUED.match(asked) or _RESUMED.search(asked)),
        finish=turn.completion.finish,
    )


def _asked(messages: Sequence[Message]) -> str:
    """The last thing a person said, without the envelope."""
    for message in reversed(messages):
        if message.role == "user" and not message.content.startswith("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"):
            return _STAMP.sub("", message.content).partition("\n\nRuntime: agent=")[0]
    return ""


def _said(asked: str) -> str:
    """What the person said last; a message that waited while OpenClaw went on by itself stands before it."""
    return _REQUEUED.sub(r"\1", _RESUMED.sub("", asked)).rpartition("\n\n")[2].strip()


def main() -> int:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("--only", choices=("plain", "plugin"), help="one variant instead of both")
    told.add_argument("--kill-gateway", action="store_const", dest="kill", const="gateway")
    told.add_argument("--kill-server", action="store_const", dest="kill", const="server")
    told.add_argument("--fake", action="store_true", help="no model: the shipped fakes, to try this run itself out")
    told.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep logs, settings and the ledger there, also when all is well"
    )
    given = told.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # so that the children are ended too
    entry = installed()
    good = plugin_tests()
    names = [given.only] if given.only else list(NAMES)
    folder = given.keep or Path(tempfile.mkdtemp(prefix="openclaw-rl-acceptance-"))
    folder.mkdir(parents=True, exist_ok=True)
    held = play(folder.resolve(), entry, names, kill=given.kill, fake=given.fake)
    if given.keep is None and held:
        shutil.rmtree(folder)
    elif not held:
        print(f"\nkept for a look: {folder}", flush=True)
    return 0 if good and held else 1


if __name__ == "__main__":
    sys.exit(main())
