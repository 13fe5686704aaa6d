"""The pages of the site, a hook of mkdocs: files of this checkout at their own places, so that every link holds.

The order is that of the groups in docs/README.md. A file that a page links to and that is no page is copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
MAP = "docs/README.md"
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
REFERENCE = "docs/reference.md"
NAMES = ("up", "Run", "NoteCurve")
"""the names of openclaw_rl.run on the page of the reference"""


def linked(page: str) -> Iterator[str]:
    """The files that a page links to, by their places in the checkout."""
    folder = PurePosixPath(page).parent
    for target in LINK.findall((ROOT / page).read_text("utf-8")):
        yield normpath(str(folder / target))


def groups() -> dict[str, list[str]]:
    """The pages of each group of the map."""
    parts = re.split(r"^## (.+)$", (ROOT / MAP).read_text("utf-8"), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {title: [normpath(f"docs/{one}") for one in LINK.findall(text)] for title, text in found.items()}


def reached() -> set[str]:
    """Every file that is linked from the home page, from the map, or from a page among those."""
    found, open_ends = set[str](), ["README.md", MAP]
    while open_ends:
        page = open_ends.pop()
        if page not in found and (ROOT / page).is_file():
            found.add(page)
            open_ends += linked(page) if page.endswith(".md") else ()
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the map."""
    nav: list[Any] = [{"Home": "README.md"}, {"Documentation": [MAP]}]
    for title, pages in groups().items():
        nav.append({title: list(dict.fromkeys(pages))})
    nav.append({"Reference": [{"Python": REFERENCE}]})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the files of this checkout in place of those of one folder."""
    from mkdocs.structure.files import File, Files

    theme = [file for file in files if file.src_uri.startswith("assets/") or file.abs_src_path is None]
    pages = [File.generated(config, one, abs_src_path=str(ROOT / one)) for one in sorted(reached())]
    lines = ["# Python reference", "", "`import openclaw_rl as rl` has these names ([how to use them](python.md)).", ""]
    lines += [f"::: openclaw_rl.run.{name}\n" for name in NAMES] + ["::: openclaw_rl.clients.api.ApiReply\n"]
    return Files([*theme, *pages, File.generated(config, REFERENCE, content="\n".join(lines))])
