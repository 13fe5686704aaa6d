"""Asking a person what they meant: the judge's doubt in, a labelled line of their own out."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from openclaw_rl.app.judges import build_judge, with_judge
from openclaw_rl.config import Config
from openclaw_rl.judge.doubt import exchange, find_doubt, label_of
from openclaw_rl.ports import Judge
from openclaw_rl.types import Doubt

OWN_LINES = "own_lines.jsonl"
"""in the run's directory: what its users answered, as labelled exchanges; it is never sent anywhere"""


class LocalAsker:
    """Reads messages on this machine and keeps the answers in a file for its owner alone."""

    def __init__(self, judge: Judge, path: Path) -> None:
        self._judge = judge
        self._path = path

    async def doubt(self, request: str, reply: str, message: str) -> Doubt | None:
        """What ``message`` may say of ``reply``, None where there is nothing to ask."""
        return await find_doubt(self._judge, request, reply, message)

    def keep(self, request: str, reply: str, message: str, doubt: Doubt, *, meant: bool) -> None:
        """Add the exchange with its answer to the user's own lines."""
        hint = doubt.hints[0].text if meant and doubt.hints else None
        row = replace(exchange(request, reply, message), label=label_of(doubt, meant=meant), hint=hint)
        line = {
            "request": row.request,
            "reply": row.reply,
            "next": row.next,
            "kind": row.label,
            "hint": row.hint,
            "tags": ["asked"],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8", opener=_private) as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def build_asker(config: Config) -> LocalAsker | None:
    """Who asks, None where nobody is to be asked. Models are left out: a question must not wait for one."""
    if not config.judge.ask_in_doubt:
        return None
    judge = config.judge
    light = {"llm": type(judge.llm)(), "models": type(judge.models)()}
    alone = config.model_copy(update={"judge": judge.model_copy(update=light)})
    if judge.kind == "llm" and judge.custom is None:
        alone = with_judge(alone, "rules")
    return LocalAsker(build_judge(alone, None), config.run.dir / OWN_LINES)
