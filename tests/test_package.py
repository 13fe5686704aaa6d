"""The package: what it holds, what it asks for, and that every line it tells people to type can be typed."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name as plain

import openclaw_rl
from openclaw_rl.app import checks
from openclaw_rl.plugins import files as plugin_files
from openclaw_rl.versions import artifact_store
from scripts import check_wheel, release

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "openclaw_rl"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: {plain(Requirement(one).name): Requirement(one) for one in asked}
    for name, asked in PROJECT["optional-dependencies"].items()
}
TEXTS = [
    file
    for folder in ("src", "docs", "scripts", "tests", "examples", "integrations", ".github", "deploy")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in (".py", ".md", ".sh", ".ts", ".yml", ".yaml")
] + [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "Dockerfile"]


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


# --- remedies


def test_every_extra_that_a_text_names_is_one() -> None:
    wrong = {
        (named(file), extra)
        for file in TEXTS
        for extras in re.findall(r"openclaw[-_]rl\\?\[([\w,-]+)\\?\]", file.read_text("utf-8"))
        for extra in extras.split(",")
        if extra not in EXTRAS
    }
    assert wrong == set()


def missing_extras() -> Iterator[tuple[str, str | None, str | None]]:
    """Place, package and extra of each ``MissingExtra(package, extra)``; None for what is no plain text."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "MissingExtra":
                package, extra = (arg.value if isinstance(arg, ast.Constant) else None for arg in node.args)
                yield f"{named(file)}:{node.lineno}", package, extra


def test_the_extra_of_an_error_brings_the_package_that_is_missing() -> None:
    told = list(missing_extras())
    assert len(told) > 10
    assert [one for one in told if one[2] is not None and one[2] not in EXTRAS] == []
    assert [one for one in told if one[1] and one[2] and plain(one[1]) not in EXTRAS[one[2]]] == []


def test_the_extras_that_are_looked_up_bring_the_package_that_is_missing() -> None:
    looked_up = {
        *plugin_files._EXTRA_OF.items(),
        *artifact_store._EXTRAS.values(),
        *((name, "local") for name in checks.LOCAL_PACKAGES),
        *((name, name) for name in ("tensorboard", "trackio", "wandb", checks.CLOUD)),
    }
    assert [(package, extra) for package, extra in looked_up if plain(package) not in EXTRAS[extra]] == []


def lines_to_type() -> Iterator[tuple[str, str]]:
    """Every text of the program that tells somebody to install something with pip."""
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text("utf-8"))
        formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        parts = {part for node in formatted for part in node.values}
        for node in ast.walk(tree):
            if node not in parts and (text := text_of(node)) and text.startswith("pip install "):
                yield f"{named(file)}:{node.lineno}", text  # type: ignore[attr-defined]


def text_of(node: ast.AST) -> str | None:
    """The text of a literal; what is filled in reads as 1, which may be a name, a folder or a version."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "1" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def asked_of_pip(line: str) -> list[str]:
    """What a line asks pip for, without its options and what follows the command."""
    words = shlex.split(re.split(r", | brings ", line.removeprefix("pip install "))[0])
    return [word for before, word in zip(["", *words], words, strict=False) if word[0] != "-" and before != "--target"]


def test_every_line_for_pip_can_be_typed_and_asks_for_no_package_that_an_extra_brings() -> None:
    found = list(lines_to_type())
    assert len(found) > 8
    brought = {name for packages in EXTRAS.values() for name in packages} - set(EXTRAS["dev"])
    for place, line in found:
        assert asked_of_pip(line), f"{place}: {line}"
        for one in asked_of_pip(line):
            try:
                asked = Requirement(one)
            except InvalidRequirement as error:
                raise AssertionError(f"{place}: {line}") from error
            another_release = asked.specifier or " -U " in line
            assert another_release or plain(asked.name) not in brought, f"{place}: name an extra instead of {one}"


# --- what it asks for


def test_torch_is_a_range_that_holds_the_version_everything_is_tested_on() -> None:
    ranges = {str(packages["torch"].specifier) for packages in EXTRAS.values() if "torch" in packages}
    assert len(ranges) == 1
    asked = EXTRAS["local"]["torch"].specifier
    assert [asked.contains(version) for version in ("2.10.0", "2.11.0", "2.13.0", "2.13.1", "2.14.0")] == [
        False,
        True,
        True,
        True,
        False,
    ]
    tested = re.search(r"^TORCH_VERSION \?= (.+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert tested is not None
    assert tested[1] == check_wheel.TORCH_VERSION
    assert asked.contains(tested[1])


# --- what it holds


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built beside it."""
    tree = tmp_path_factory.mktemp("tree")
    copytree(ROOT / "src", tree / "src", ignore=ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"):
        (tree / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tree / "dist", tree],
        check=True,
        capture_output=True,
    )
    return next((tree / "dist").glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_is_small_and_holds_every_file_of_the_source(wheel: Path) -> None:
    assert wheel.stat().st_size < check_wheel.LARGEST
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("openclaw_rl/")}
    ours = {
        str(file.relative_to(ROOT / "src"))
        for file in SOURCE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert held == ours


@pytest.mark.slow
def test_the_wheel_is_of_the_version_that_the_package_declares(wheel: Path) -> None:
    assert wheel.name == f"openclaw_rl-{openclaw_rl.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"openclaw_rl-{openclaw_rl.__version__}.dist-info/METADATA").decode()
    assert f"\nVersion: {openclaw_rl.__version__}\n" in metadata
    assert "version" not in PROJECT


# --- a release


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that is fit for a release of 1.2.3."""
    package = tmp_path / "src" / "openclaw_rl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2026-11-19\n")
    release.git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def commit(root: Path) -> None:
    release.git(root, "add", "-A")
    release.git(root, "-c", "user.name=Ann", "-c", "user.email=ann@example.com", "commit", "-qm", "all of it")


def test_a_clean_tree_with_a_dated_entry_is_fit_for_a_release(repository: Path) -> None:
    assert release.ready(repository) == "1.2.3"


def test_a_tree_with_changes_is_not_released(repository: Path) -> None:
    (repository / "more.py").write_text("")
    with pytest.raises(release.NotReady, match=r"not clean; commit or remove:\n\?\? more.py"):
        release.ready(repository)


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("CHANGELOG.md", "## [Unreleased]\n", r"no heading '## \[1\.2\.3\] - YYYY-MM-DD'"),
        ("src/openclaw_rl/__init__.py", '__version__ = "1.2"\n', "'1.2' is no semantic version"),
        ("src/openclaw_rl/__init__.py", "", "declares no __version__"),
    ],
)
def test_a_release_without_a_version_or_an_entry_is_refused(repository: Path, file: str, text: str, why: str) -> None:
    (repository / file).write_text(text)
    commit(repository)
    with pytest.raises(release.NotReady, match=why):
        release.ready(repository)


def test_a_version_is_released_once_and_a_tag_must_be_of_this_commit(repository: Path) -> None:
    release.git(repository, "tag", "v1.2.3")
    with pytest.raises(release.NotReady, match=r"v1\.2\.3 is tagged already"):
        release.ready(repository)
    assert release.ready(repository, tagged="v1.2.3") == "1.2.3"
    (repository / "more.py").write_text("")
    commit(repository)
    with pytest.raises(release.NotReady, match=r"v1\.2\.3 is not of this commit"):
        release.ready(repository, tagged="v1.2.3")


def test_the_changelog_tells_of_this_version_or_of_what_is_unreleased() -> None:
    headings = re.findall(r"^## \[([^]]+)\]", release.changelog(ROOT), flags=re.MULTILINE)
    assert headings[0] in ("Unreleased", openclaw_rl.__version__)
    assert release.declared(ROOT) == openclaw_rl.__version__


# --- workflows and pages for those who build it

TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def commands(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job.get("steps", ()) if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=named)
def test_a_workflow_runs_targets_and_scripts_that_exist(workflow: Path) -> None:
    called = " ".join(commands(workflow))
    assert set(re.findall(r"\bmake ([a-z-]+)", called)) <= TARGETS
    for script in re.findall(r"\bscripts/[\w./-]+", called):
        assert (ROOT / script).is_file(), script


def test_the_workflows_test_both_ends_of_the_range_of_torch() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    tested = {row["torch"] for row in jobs["linux"]["strategy"]["matrix"]["include"]}
    assert {"2.11.0", check_wheel.TORCH_VERSION} <= tested
    assert all(EXTRAS["local"]["torch"].specifier.contains(version) for version in tested)


@pytest.mark.parametrize("page", ["AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", ".github/pull_request_template.md"])
def test_every_target_that_a_page_names_exists(page: str) -> None:
    assert set(re.findall(r"(?:^ {4}|`|&& )make ([a-z-]+)", (ROOT / page).read_text(), flags=re.MULTILINE)) <= TARGETS


def test_every_place_that_agents_are_sent_to_exists() -> None:
    table = (ROOT / "AGENTS.md").read_text().partition("## Where")[2].partition("## Rules")[0]
    for place in re.findall(r"`([\w./*-]+[./][\w./*-]*)`", table):
        assert list(ROOT.glob(place.rstrip("/"))), place
