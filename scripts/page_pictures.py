"""Pictures of the page: every view of a run, light and dark, on a desktop and on a phone.

    python scripts/page_pictures.py RUN_DIR FOLDER    all of them, to look at
    python scripts/page_pictures.py RUN_DIR           those of docs/page.md, into docs/page; --only NAME: that one

RUN_DIR is the directory of any run; that of `openclaw-rl demo` (which prints it) tells the story of one correction.
Needs the package playwright and Debian's chromium. The page is started on a copy of the run, in which the tasks of
examples/gui are played once in a real browser, so that there are episodes too. With --served it is started on the run
itself, whose server runs: the tokens of a turn are drawn only then.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from openclaw_rl.envs.episodes import run_episode
from openclaw_rl.envs.gui.env import gui
from openclaw_rl.ports import TurnReply
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import TemporaryLedger, make_completion, make_outcome, make_turn
from openclaw_rl.types import Message, Prompt, SessionReward, Turn
from openclaw_rl.views import browse, environments, learning

DOCS = Path(__file__).parents[1] / "docs" / "page"
SCREENS: Mapping[str, tuple[int, int]] = {"desktop": (1280, 820), "phone": (390, 820)}
HEIGHTS = {"turn": 560}
"""of what says enough in its upper part"""
THEMES = ("light", "dark")
SHEET = "margin:0;padding:12px;background:#888;display:inline-grid;gap:12px;grid-template-columns:auto auto auto auto"
SHOWN = ("talk-desktop-light", "learning-desktop-light", "versions-desktop-dark", "curves-desktop-light")
SHOWN += ("sessions-desktop-dark", "turn-desktop-light", "learning-phone-light", "talk-phone-dark")
SHOWN += ("replay-desktop-light", "environments-phone-dark")
"""the pictures of docs/page.md"""


class Solver:
    """Plays a task by its own solution, and writes to a ledger what a server would have."""

    def __init__(self, ledger: TemporaryLedger, env: Any) -> None:
        self._ledger, self._env = ledger, env
        self._open: Turn | None = None

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> TurnReply:
        """The next action of the solution."""
        self._settle(prompt.messages)
        message = await self._env.solution() or Message(role="assistant", content="```\ndone\n```")
        reply = make_completion(reply=message, version=1)
        self._open = make_turn(prompt=prompt, completion=reply, session=session, group=group, user="env:gui")
        self._ledger.serve.add_turn(self._open)
        return TurnReply(turn=self._open.id, message=message, version=1)

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None:
        """What a step is worth is not looked at here."""

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None:
        """The end of an episode."""
        self._settle(())
        self._ledger.serve.add_reward(SessionReward(session=session, user="env:gui", score=score, failed=failed))

    def _settle(self, messages: Sequence[Message]) -> None:
        if self._open is not None:
            came = tuple(messages[len(self._open.prompt.messages) + 1 :])
            settled = make_outcome(self._open, session=str(self._open.session), next_state=came, ended=None)
            self._ledger.collect.settle([settled], [], turns_read=self._ledger.serve.newest("turns"))
        self._open = None


def play(run: Path) -> None:
    """Each task of examples/gui once, with its screens."""
    env = gui(
        screenshot_backend="playwright",
        form="text",
        examples=0,
        levels=(),
        per_level=1,
        output_chars=1500,
        pages=Path(__file__).parents[1] / "examples" / "gui" / "tasks.jsonl",
        folder=None,
        screenshots="keep",
        screens=run / "screens",
    )

    async def played(ledger: TemporaryLedger) -> None:
        for task in env.tasks():
            await run_episode(env, Solver(ledger, env), task=task, seed=0, group=task, max_steps=8)
        await env.close()

    with TemporaryLedger(run) as ledger:
        asyncio.run(played(ledger))


@contextmanager
def copied(run: Path) -> Iterator[Path]:
    """A copy of a run with some episodes, without its weights."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "run"
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("versions", "*.lock", "server.json"))
        play(copy)
        yield copy


def views(run: Path) -> dict[str, str]:
    """The address of each view; those of one thing show the newest correction and the newest version."""
    found = {name: f"/{name}" for name in ("talk", "learning", "versions", "curves", "environments", "sessions")}
    with LedgerReader(run / "ledger.db") as ledger:
        corrected = learning.corrections(ledger, None, limit=1)
        newest = browse.version_lines(ledger, limit=1)
        played = environments.episodes(ledger, "gui", None, limit=1)
    if corrected:
        one = corrected[0]
        found["talk"] = f"/talk?session={one.session}"
        found["turn"] = f"/sessions?turn={one.turn}"
        found["session"] = f"/sessions?session={one.session}&user={one.user}"
    if played:
        found["replay"] = f"/environments?env=gui&session={played[0].session}"
    if newest:
        found["version"] = f"/versions?version={newest[0].version.number}"
    return found


@contextmanager
def page(run: Path) -> Iterator[str]:
    """The page on a free port; its address."""
    command = [sys.executable, "-m", "openclaw_rl", "page", "--run-dir", str(run), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield next(line for line in process.stderr if line.startswith("page ")).split()[-1].rstrip("/")
    finally:
        process.terminate()
        process.communicate(timeout=30)


def take(browser: Any, address: str, paths: Mapping[str, str], folder: Path, wanted: tuple[str, ...] | None) -> None:
    """Every picture that is wanted (None: all), one file each."""
    for screen, (width, height) in SCREENS.items():
        for theme in THEMES:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            tab = context.new_page()
            for name, path in paths.items():
                picture = f"{name}-{screen}-{theme}"
                if wanted is not None and picture not in wanted:
                    continue
                tab.goto(address + path)
                tab.wait_for_timeout(2500 if name == "turn" else 600)  # the server decodes the tokens
                for screen_shown in tab.locator("img.screen").all():
                    screen_shown.scroll_into_view_if_needed()  # it is loaded once it is seen
                tab.evaluate("scrollTo(0, 0)")
                area = {"x": 0, "y": 0, "width": width, "height": HEIGHTS.get(name, height)}
                whole: dict[str, Any] = {"full_page": True} if wanted is None else {"clip": area}
                tab.screenshot(path=str(folder / f"{picture}.png"), **whole)
                print(folder / f"{picture}.png")
            context.close()


def sheets(browser: Any, taken: Path, names: Iterable[str], folder: Path) -> None:
    """Of every view one sheet with its four forms, so that they can be looked at beside each other."""
    tab = browser.new_page(viewport={"width": 1800, "height": 480})
    for name in names:
        forms = [f"{name}-{screen}-{theme}.png" for screen in SCREENS for theme in THEMES]
        images = [base64.b64encode((taken / form).read_bytes()).decode() for form in forms]
        shown = "".join(f'<img height="440" src="data:image/png;base64,{image}">' for image in images)
        tab.set_content(f'<body style="margin:0"><div id="sheet" style="{SHEET}">{shown}</div>')
        tab.locator("#sheet").screenshot(path=str(folder / f"sheet-{name}.jpg"), type="jpeg", quality=70)
        print(folder / f"sheet-{name}.jpg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", choices=SHOWN, help="of the few, this one")
    parser.add_argument("--served", action="store_true", help="on the run itself, whose server runs")
    given = parser.parse_args()
    folder = given.folder or DOCS
    folder.mkdir(parents=True, exist_ok=True)
    wanted = None if given.folder else (given.only,) if given.only else SHOWN
    with (
        tempfile.TemporaryDirectory() as temporary,
        nullcontext(given.run) if given.served else copied(given.run) as run,
        page(run) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        paths = views(run)
        take(browser, address, paths, folder, wanted)
        if wanted is SHOWN:
            forms = tuple(f"{name}-{screen}-{theme}" for name in paths for screen in SCREENS for theme in THEMES)
            take(browser, address, paths, Path(temporary), forms)
            sheets(browser, Path(temporary), paths, folder)
        browser.close()


if __name__ == "__main__":
    main()
