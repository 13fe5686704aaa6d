"""The manual says what is so: settings it names exist, links lead somewhere, commands it shows are there."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

import openclaw_rl
from openclaw_rl import run
from openclaw_rl.app import environments
from openclaw_rl.cli import cli
from openclaw_rl.config import SETTINGS
from openclaw_rl.config.renamed import MOVED
from openclaw_rl.testing.servers import fake_config
from scripts import site_pages

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
KEYS = set(SETTINGS)
SECTIONS = {key.partition(".")[0] for key in KEYS}
NOT_SETTINGS = {"md", "sh", "log", "jsonl", "json", "lock", "py", "toml", "txt", "svg", "png"}
"""what follows a dot in the name of a file"""


MEMBERS = {f"run.{name}" for name in vars(run.Run) if not name.startswith("_")}
"""of the object that `openclaw_rl.up` returns, which reads like a setting of the section ``run``"""


def page(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _named(text: str) -> set[str]:
    """Every ``section.key`` of a text that looks like a setting; of a free table, the table."""
    found = re.findall(rf"(?<![\w/.-])((?:{'|'.join(SECTIONS)})(?:\.[a-z_][a-z_0-9]*)+)", text)
    named = (key for key in found if key.rpartition(".")[2] not in NOT_SETTINGS and key not in MEMBERS)
    return {re.sub(r"\.options\..*", ".options", key) for key in named}


@pytest.mark.parametrize("file", PAGES, ids=page)
def test_every_setting_that_a_page_names_exists(file: Path) -> None:
    known_here = KEYS | set(MOVED) if file.name == "CHANGELOG.md" else KEYS
    wrong = {key for key in _named(file.read_text()) if key not in known_here}
    assert {key for key in wrong if not any(known.startswith(f"{key}.") for known in KEYS)} == set()


@pytest.mark.parametrize("file", PAGES, ids=page)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(file: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text()):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        there = (file.parent / path).resolve() if path else file
        assert there.exists(), target
        if anchor:
            assert anchor in _anchors(there.read_text()), target


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("file", PAGES, ids=page)
def test_every_command_that_a_page_shows_is_one(file: Path) -> None:
    shown = re.findall(r"(?:^ {4,}|`)openclaw-rl ([a-z][a-z-]*)", file.read_text(), flags=re.MULTILINE)
    assert set(shown) <= set(cli.commands)


def test_the_page_on_plugins_lists_every_name_that_an_environments_signature_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments.plugins, "build", lambda *_, offered, options: offered)
    offered: Any = environments.build_env(fake_config(tmp_path, "env.type=terminal"))
    table = (ROOT / "docs" / "plugins.md").read_text().partition("An environment may name these")[2]
    rows = re.findall(r"^\| (`.+?) \|", table.partition("Any other name")[0], flags=re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(offered)


def _command_lines(text: str) -> list[str]:
    """The command lines in the code blocks of a page, without variables before them or `&` behind them."""
    lines = text.replace("\\\n", " ").splitlines()
    found = (re.match(r" {4}(?:[A-Z_]+=\S+ )*(openclaw-rl .*?)(?: &)?$", line) for line in lines)
    return [match.group(1) for match in found if match]


MANUAL = sorted([ROOT / "SKILL.md", *ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md")])
COMMANDS = [(page(file), line) for file in MANUAL for line in _command_lines(file.read_text())]
EXAMPLES = {"VERSION": "3", "N": "3"}
"""an argument for each placeholder that is a number"""


@pytest.mark.parametrize(("file", "line"), COMMANDS, ids=[f"{file}:{line[:40]}" for file, line in COMMANDS])
def test_every_command_line_has_flags_and_arguments_that_its_command_takes(
    file: str, line: str, tmp_path: Path
) -> None:
    existing = tmp_path / "lines.jsonl"
    existing.touch()
    _, name, *words = shlex.split(line, comments=True)
    words = [str(existing) if re.search(r"\.jsonl?$", word) else EXAMPLES.get(word, word) for word in words]
    command: click.Command = cli.commands[name]
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    with command.make_context(name, words) as context:  # a flag that it does not take, a missing argument: it raises
        assert context.args == [], "nothing is left over"
        assert set(context.params) == {parameter.name for parameter in command.params if parameter.expose_value}


def test_the_page_on_training_explains_every_setting_of_training() -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    assert {key for key in KEYS if key.startswith("train.") and f"`{key}`" not in text} == set()


def test_the_map_of_the_documentation_lists_every_page() -> None:
    folder = ROOT / "docs"
    listed = set(re.findall(r"\]\(([^)]+\.md)\)", (folder / "README.md").read_text()))
    pages = {str(file.relative_to(folder)) for file in folder.rglob("*.md")} - {"README.md"}
    assert pages - listed == set()


# --- the site


def test_the_site_has_every_page_of_the_manual_once_in_the_order_of_its_map() -> None:
    pages = [page for group in site_pages.groups().values() for page in group]
    assert sorted(pages) == sorted({*pages}), "a page has one place"
    manual = {page(file) for file in (ROOT / "docs").rglob("*.md")}
    assert manual - {*pages} == {"docs/README.md"}
    assert next(iter(site_pages.groups())) == "Use it"
    assert pages[0] == "docs/install.md"


def test_the_site_holds_every_file_that_its_pages_link_to() -> None:
    held = site_pages.reached()
    for each in held:
        if each.endswith(".md"):
            assert {target for target in site_pages.linked(each) if (ROOT / target).is_file()} <= held
    assert {"README.md", "SECURITY.md", "benchmarks/RESULTS.md", "docs/demo.svg", "examples/notebook.ipynb"} <= held


def test_the_reference_of_the_site_has_the_public_names_of_a_run() -> None:
    assert {*site_pages.NAMES} == {*openclaw_rl._OF_A_RUN} - {"ApiReply"}
    for name in site_pages.NAMES:
        assert getattr(run, name).__doc__


def test_the_page_on_python_names_every_member_of_a_run() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    assert [name for name in MEMBERS if name not in text] == []


def test_the_code_of_the_page_on_python_and_of_the_notebook_is_python_and_names_what_there_is() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())["cells"]
    sources = re.findall(r"^```python\n(.+?)^```", text, flags=re.MULTILINE | re.DOTALL)
    sources += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for each in sources:
        ast.parse(each)
        assert {name for name in re.findall(r"\brun\.(\w+)", each) if not hasattr(run.Run, name)} == set()
        assert _named(each) <= KEYS


def test_the_notebook_was_run_from_top_to_bottom_and_is_small() -> None:
    file = ROOT / "examples" / "notebook.ipynb"
    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs), "the curve is drawn"
    assert file.stat().st_size < 30_000
