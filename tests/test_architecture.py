"""The house: arrows run down only, there is no circle, only config reads the environment, heavy things come late."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "openclaw_rl"
FILES = sorted(ROOT.rglob("*.py"))

FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "text", "stats", "files", "machine"),
    ("types",),
    ("ports", "web", "config", "losses"),
    ("preferences", "plugins", "store", "formats", "tasks"),
    ("serve", "collect", "judge", "train", "versions", "gate", "notes", "views", "backends", "envs", "clients", "page"),
    ("app",),
    ("evals", "experiments"),
    ("run",),
    ("cli", "testing", "__init__", "__main__"),
)
"""every room, from the ground up: arrows run down only"""

GROUND = {"errors", "text", "stats", "files", "types", "web", "ports"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "text": set(),
    "stats": set(),
    "files": {"errors"},
    "machine": set(),
    "types": {"errors"},
    "web": {"errors", "types"},
    "ports": {"types"},
    "config": {"errors", "types"},
    "losses": {"errors"},
    "plugins": {"ports", "errors"},
    "store": GROUND,
    "formats": GROUND,
    "preferences": GROUND,
    "tasks": GROUND | {"preferences"},
    # the loops are handed ports: they see neither each other, nor backends, nor environments
    "serve": GROUND | {"formats", "notes", "preferences"},
    "collect": GROUND,
    "judge": GROUND | {"preferences"},
    "train": GROUND | {"versions", "notes", "preferences"},
    "versions": GROUND,
    "gate": GROUND | {"formats", "tasks", "store", "versions", "notes", "preferences"},
    "notes": GROUND | {"store", "preferences"},
    "views": GROUND | {"store", "versions", "notes", "preferences"},
    "backends": GROUND | {"formats", "losses", "plugins", "machine"},
    "envs": GROUND | {"tasks"},
    "clients": GROUND,
    # the page looks through views and acts through the API's client, like anybody else
    "page": GROUND | {"store", "views", "clients"},
    # only app sees the whole config and wires
    "app": {room for floor in FLOORS[:5] for room in floor} - {"backends"},
    "evals": {room for floor in FLOORS[:6] for room in floor} - {"backends", "train", "judge", "collect", "serve"},
    "experiments": {room for floor in FLOORS[:6] for room in floor}
    - {"backends", "train", "judge", "collect", "serve"},
    "run": {room for floor in FLOORS[:7] for room in floor} - {"backends", "train", "judge", "collect", "serve"},
    "cli": {room for floor in FLOORS[:7] for room in floor} - {"backends"},
    "testing": {room for floor in FLOORS[:6] for room in floor},
    "__init__": GROUND | {"store", "config", "plugins", "clients", "run"},
    "__main__": {"cli"},
}


def room(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


@dataclass
class Source:
    """What these tests look at in a file, from one walk through its tree."""

    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    attributes: list[ast.Attribute] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    """of the file itself, not those inside of others"""


@cache
def source(file: Path) -> Source:
    tree = ast.parse(file.read_text())
    found = Source(classes=[node.name for node in tree.body if isinstance(node, ast.ClassDef)])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imports.append(node)
        elif isinstance(node, ast.Attribute):
            found.attributes.append(node)
    return found


@cache
def arrows(file: Path) -> tuple[tuple[str, int], ...]:
    """Every module of this package that a file imports, wherever in the file, with its line."""
    found = []
    for node in source(file).imports:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.level == 0 and node.module:
            names = [_module(node.module, alias.name) for alias in node.names]
        else:
            pytest.fail(f"{file}:{node.lineno}: relative import; say where it comes from")
        ours = [name.removeprefix("openclaw_rl.") for name in names if name.startswith("openclaw_rl.")]
        found += [(name, node.lineno) for name in ours]
    return tuple(found)


def _module(package: str, name: str) -> str:
    """What ``from package import name`` loads: the module of that name if there is one, the package otherwise."""
    inside = ROOT.joinpath(*package.split(".")[1:], name)
    return f"{package}.{name}" if inside.is_dir() or inside.with_suffix(".py").exists() else package


def test_every_room_has_its_row_in_the_table_and_its_floor() -> None:
    assert {room(file) for file in FILES} <= set(ALLOWED)
    height = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    assert set(height) == set(ALLOWED)
    for name, below in ALLOWED.items():
        assert all(height[other] <= height[name] for other in below), name


def test_arrows_run_down_only() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {target}; {room(file)} may see {sorted(ALLOWED[room(file)])}"
        for file in FILES
        for target, line in arrows(file)
        if target.partition(".")[0] not in {room(file), *ALLOWED[room(file)]}
    ]
    assert not wrong, "\n".join(wrong)


def test_no_backend_imports_a_sibling() -> None:
    for file in FILES:
        parts = file.relative_to(ROOT).parts
        if parts[0] != "backends" or len(parts) < 3 or parts[1] == "hf":
            continue
        for target, line in arrows(file):
            inside = target.split(".")
            assert inside[0] != "backends" or inside[1] in ("hf", parts[1]), f"{file}:{line} imports {target}"


def test_there_is_no_circle_between_rooms() -> None:
    seen: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in seen:
            for below in ALLOWED.get(name, ()):
                walk(below, (*path, name))
            seen.add(name)

    for name in ALLOWED:
        walk(name, ())


def module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_there_is_no_circle_between_modules() -> None:
    known = {module(file) for file in FILES}
    graph = {module(file): {t for t, _ in arrows(file) if t in known and t != module(file)} for file in FILES}

    def walk(name: str, path: tuple[str, ...], done: set[str]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for below in graph[name]:
                walk(below, (*path, name), done)
            done.add(name)

    done: set[str] = set()
    for name in graph:
        walk(name, (), done)


def reads(files: Sequence[Path], *attributes: str) -> list[str]:
    """Where one of these attributes is read."""
    return [
        f"{file}:{node.lineno}: {node.attr}"
        for file in files
        for node in source(file).attributes
        if node.attr in attributes
    ]


def test_only_config_reads_the_environment() -> None:
    runs_alone = (
        ROOT / "envs" / "verifier" / "run_inside.py"
    )  # copied into a sandbox, where it hands pytest its environment
    elsewhere = [file for file in FILES if room(file) != "config" and file != runs_alone]
    assert reads(elsewhere, "environ", "getenv", "environb") == []


def test_the_light_core_pulls_in_no_heavy_package() -> None:
    rooms = "openclaw_rl, openclaw_rl.app.application, openclaw_rl.cli, openclaw_rl.app.doctor, openclaw_rl.train.loop, openclaw_rl.train.samples"
    code = f"import sys, {rooms}, openclaw_rl.backends.fake, openclaw_rl.backends.local.engine.policy, openclaw_rl.backends.local.training.trainer, openclaw_rl.judge.loop, openclaw_rl.collect.loop, openclaw_rl.serve.api\n"
    code += "print(sorted({'torch', 'transformers', 'peft', 'numpy', 'vllm', 'ray'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_the_commands_the_errors_and_click_and_little_else() -> None:
    code = "import sys; bare = set(sys.modules); import openclaw_rl.cli; print(*(set(sys.modules) - bare))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if not name.startswith("openclaw_rl.cli.")}
    assert {name for name in loaded if name.startswith("openclaw_rl")} == {
        "openclaw_rl",
        "openclaw_rl.cli",
        "openclaw_rl.errors",
    }
    heavy = {"asyncio", "logging", "multiprocessing", "pydantic", "rich", "socket", "sqlite3", "starlette", "uvicorn"}
    assert loaded & heavy == set()
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert others <= {"openclaw_rl", "click"}, "each package more is paid for by every command"


def test_one_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for file in FILES:
        for name in source(file).classes:
            places.setdefault(name, []).append(str(file.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_file_has_more_than_450_lines() -> None:
    assert [str(file) for file in FILES if len(file.read_text().splitlines()) > 450] == []


TESTS = sorted(file for file in Path(__file__).parent.rglob("*.py") if file.parent.name != "fakes")
CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")
CLOCK = re.compile(rf"\b(?:{'|'.join(CLOCKS)})\b")
"""only a file with such a word need be parsed"""


def test_no_test_measures_how_long_something_takes() -> None:
    """A busy machine is no fault: count work, order events, or wait with `openclaw_rl.testing.wait_until`."""
    suspects = [file for file in TESTS if CLOCK.search(file.read_text())]
    assert reads(suspects, *CLOCKS) == []
