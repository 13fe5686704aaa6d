"""Pictures of the page: every view of a run, light and dark, on a desktop and on a phone.

    python scripts/page_pictures.py RUN_DIR FOLDER    all of them, to look at
    python scripts/page_pictures.py RUN_DIR           the few of docs/page.md, into docs/page; --only NAME: that one

RUN_DIR is the directory of any run; that of `openclaw-rl demo` (which prints it) tells the story of one correction.
Needs the package playwright and Debian's chromium. The page is started on the run for that long; the tokens of a turn
are drawn only where its server runs too.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from openclaw_rl.store import LedgerReader
from openclaw_rl.views import browse, learning

DOCS = Path(__file__).parents[1] / "docs" / "page"
SCREENS: Mapping[str, tuple[int, int]] = {"desktop": (1280, 820), "phone": (390, 820)}
HEIGHTS = {"turn": 560}
"""of what says enough in its upper part"""
SHOWN = ("talk-desktop-light", "learning-desktop-light", "versions-desktop-dark", "curves-desktop-light")
SHOWN += ("sessions-desktop-dark", "turn-desktop-light", "learning-phone-light", "talk-phone-dark")
"""the pictures of docs/page.md"""


def views(run: Path) -> dict[str, str]:
    """The address of each view; those of one thing show the newest correction and the newest version."""
    found = {name: f"/{name}" for name in ("talk", "learning", "versions", "curves", "environments", "sessions")}
    with LedgerReader(run / "ledger.db") as ledger:
        corrected = learning.corrections(ledger, None, limit=1)
        newest = browse.version_lines(ledger, limit=1)
    if corrected:
        one = corrected[0]
        found["talk"] = f"/talk?session={one.session}"
        found["turn"] = f"/sessions?turn={one.turn}"
        found["session"] = f"/sessions?session={one.session}&user={one.user}"
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
        for theme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            tab = context.new_page()
            for name, path in paths.items():
                picture = f"{name}-{screen}-{theme}"
                if wanted is not None and picture not in wanted:
                    continue
                tab.goto(address + path)
                tab.wait_for_timeout(2500 if name == "turn" else 600)  # the server decodes the tokens
                area = {"x": 0, "y": 0, "width": width, "height": HEIGHTS.get(name, height)}
                whole: dict[str, Any] = {"full_page": True} if wanted is None else {"clip": area}
                tab.screenshot(path=str(folder / f"{picture}.png"), **whole)
                print(folder / f"{picture}.png")
            context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", choices=SHOWN, help="of the few, this one")
    given = parser.parse_args()
    folder = given.folder or DOCS
    folder.mkdir(parents=True, exist_ok=True)
    wanted = None if given.folder else (given.only,) if given.only else SHOWN
    with page(given.run) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        take(browser, address, views(given.run), folder, wanted)
        browser.close()


if __name__ == "__main__":
    main()
