"""Every supported name from other launchers, with its setting here, derived from the declarations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from openclaw_rl.config import ENVIRONMENT, FLAGS, GROUPS, SETTINGS
from openclaw_rl.config.renamed import STATED


class KnownName(NamedTuple):
    """A typed name, its setting (None: no setting), and its effect."""

    name: str
    setting: str | None
    comes: str


def known_names() -> Iterator[KnownName]:
    """Yield environment names, then flags; each is used, refused or noted, none silently ignored."""
    for name, path in ENVIRONMENT.items():
        yield KnownName(name, path, _comes(path))
    for name, fixed in STATED.items():
        yield KnownName(name, None, f"no setting: {fixed}; another value is {_ANSWER[name]}")
    for name in GROUPS:
        yield KnownName(name, None, "its content is read as the flags below")
    for name, flag in FLAGS.items():
        yield KnownName(name, flag.path, _comes(flag.path))


_ANSWER = {"REF_LOAD": "refused", "OPENCLAW_COMBINE_OPD_TEACHER_SOURCE": "noted"}


def _comes(path: str) -> str:
    text = SETTINGS[path].description
    if path.startswith("env.") and path != "env.type":
        text += "; without an environment a note: no effect"
    if path == "gpus.teacher":
        text += "; a note: no effect"
    elif path.startswith("gpus."):
        text += "; refused if there are fewer"
    return text


def names_table() -> str:
    """Return the same as a table in Markdown."""
    lines = ["| typed | here | effect |", "|---|---|---|"]
    for name, setting, comes in known_names():
        here = f"`{setting}`" if setting else "-"
        lines.append(f"| `{name}` | {here} | {comes} |")
    return "\n".join(lines)
