"""The gui environment as the settings name it: MiniWoB++, or pages of a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.envs.actions import ActionForm
from openclaw_rl.envs.gui.chromium import BrowserDriver
from openclaw_rl.envs.gui.env import GuiEnv, Screenshots
from openclaw_rl.envs.gui.miniwob import MiniwobPages
from openclaw_rl.envs.gui.own_pages import OwnPages
from openclaw_rl.envs.gui.tasks import PageSource
from openclaw_rl.envs.packages import package_folder


def gui(
    *,
    screenshot_backend: BrowserDriver,
    form: ActionForm,
    examples: int | None,
    rungs: Sequence[str],
    per_rung: int,
    output_chars: int,
    pages: Path | None,
    folder: Path | None,
    screenshots: Screenshots,
    screens: Path,
    chromium: str | None = None,
) -> GuiEnv:
    """The environment. ``folder``: where `miniwob` was installed, if Python does not find it."""
    source: PageSource = (
        MiniwobPages(package_folder("miniwob", "miniwob", folder) / "html", rungs=rungs, per_rung=per_rung)
        if pages is None
        else OwnPages(Path(pages), rungs=rungs)
    )
    return GuiEnv(
        name="gui",
        source=source,
        driver=screenshot_backend,
        form=form,
        examples=examples,
        output_chars=output_chars,
        screenshots=screenshots,
        screens=screens,
        chromium=chromium,
    )
