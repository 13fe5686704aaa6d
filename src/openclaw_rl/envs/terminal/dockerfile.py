"""How a task's machine is made, from `environment/setup.sh` or a Dockerfile: by its lines here, or as an image."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from openclaw_rl.envs.sandbox import HOME
from openclaw_rl.envs.terminal.installs import installs_of, missing
from openclaw_rl.errors import EnvFailed

BUILD_SECONDS: Final = 1800
_PLAIN: Final = re.compile(r"(^|/)(ubuntu|debian|python|buildpack-deps|ubuntu-\d\d-\d\d|python-3-\d+)(:|@|$)")
"""images that hold a plain system, which the programs of this machine stand in for"""
_PROGRAMS: Final = {"node": "node", "golang": "go", "rust": "cargo", "gcc": "gcc", "perl": "perl", "bash": "bash"}
"""images that hold one program more, which this machine may have"""
_INSTALLERS: Final = "".join(f"{name}() {{ :; }}; " for name in ("apt", "apt-get", "apk", "pip", "pip3", "uv", "curl"))


@dataclass(slots=True)
class Built:
    """How a task's machine is made: files of its folder by their place there, scripts, and where the agent begins.

    ``refused`` says why it cannot be made of this machine's programs; ``file`` is the Dockerfile of an image.
    """

    folder: str = HOME
    placed: dict[str, Path] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    file: Path | None = None


def machine_of(place: Path, *, has_system: Callable[[str], bool]) -> Built:
    """How the machine of a task's folder is made. ``has_system``: whether a package of the system is here."""
    script = place / "environment" / "setup.sh"
    if script.is_file():
        return _from_script(script, has_system)
    for file in (place / "environment" / "Dockerfile", place / "Dockerfile"):
        if file.is_file():
            return _from_dockerfile(file, has_system)
    return Built()


def _from_script(script: Path, has_system: Callable[[str], bool]) -> Built:
    folder = "/app"
    built = Built(folder=folder)
    built.placed = {f"{folder}/{file.name}": file for file in script.parent.iterdir() if file.is_file()}
    built.scripts = [f"mkdir -p {folder} && cd {folder} && bash setup.sh && rm setup.sh"]
    built.refused = _installs(script.read_text(encoding="utf-8"), has_system, "environment/setup.sh")
    return built


def _from_dockerfile(file: Path, has_system: Callable[[str], bool]) -> Built:
    built = Built(folder="/app", file=file)
    for word, rest in _instructions(file.read_text(encoding="utf-8")):
        if word == "FROM":
            built.refused += _base(rest, has_system)
        elif word == "WORKDIR":
            built.folder = rest.strip()
            built.scripts.append(f"mkdir -p {shlex.quote(built.folder)}")
        elif word == "ENV":
            built.exports.append(f"export {rest if '=' in rest else rest.replace(' ', '=', 1)}")
        elif word in ("COPY", "ADD"):
            built.placed |= _copied(rest, file.parent, built.folder)
        elif word == "RUN":
            built.refused += _installs(rest, has_system, "the Dockerfile")
            lines = [*built.exports, f"mkdir -p {shlex.quote(built.folder)} && cd {shlex.quote(built.folder)}", rest]
            built.scripts.append("\n".join([_INSTALLERS if installs_of(rest).any_here else "", *lines]))
    return built


def _base(rest: str, has_system: Callable[[str], bool]) -> list[str]:
    image = next((word for word in rest.split() if not word.startswith("--")), "")
    name = image.rpartition("/")[2].partition(":")[0].partition("@")[0]
    if _PLAIN.search(image) or (name in _PROGRAMS and has_system(_PROGRAMS[name])):
        return []
    return [f"its Dockerfile begins FROM {image}, which needs podman or docker"]


def _installs(text: str, has_system: Callable[[str], bool], where: str) -> list[str]:
    lacking = missing(installs_of(text), has_system=has_system)
    return [f"{where} installs {', '.join(lacking)}, which is not here"] if lacking else []


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile, continued lines joined."""
    joined = re.sub(r"\\\s*\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    for line in joined.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield word.upper(), rest.strip()


def _copied(rest: str, folder: Path, working: str) -> dict[str, Path]:
    words = json.loads(rest) if rest.startswith("[") else [word for word in shlex.split(rest) if word[:2] != "--"]
    *sources, target = words
    target = target if target.startswith("/") else f"{working.rstrip('/')}/{target.removeprefix('./')}"
    into = target.endswith(("/", "/.")) or len(sources) > 1 or target == f"{working}/."
    placed: dict[str, Path] = {}
    for source in (path for name in sources for path in sorted(folder.glob(name)) or [folder / name]):
        if source.is_dir():
            placed |= {f"{target.rstrip('/.')}/{file.relative_to(source)}": file for file in files_in(source)}
        elif source.is_file():
            placed[f"{target.rstrip('/.')}/{source.name}" if into else target] = source
    return placed


def files_in(folder: Path) -> list[Path]:
    """All files below a folder."""
    return [file for file in sorted(folder.rglob("*")) if file.is_file()]


# --- an image


async def build_image(tool: str, file: Path) -> str:
    """The image of a Dockerfile, by podman or docker; one that is built already is taken. Raises EnvFailed."""
    digest = hashlib.sha256()
    for each in files_in(file.parent):
        digest.update(f"{each.relative_to(file.parent)}\0".encode() + each.read_bytes())
    name = f"localhost/openclaw-rl-task:{digest.hexdigest()[:16]}"
    program = shutil.which(tool)
    if program is None:
        raise EnvFailed(f"{tool} is not installed", remedy="install it, or set env.sandbox.driver = bubblewrap")
    if not await _ran(program, "image", "inspect", name):
        words = (program, "build", "--quiet", "--tag", name, "--file", str(file), str(file.parent))
        if why := await _failure(*words):
            raise EnvFailed(f"{tool} could not build the image of {file}: {why}", remedy=f"try: {shlex.join(words)}")
    return name


async def _ran(*words: str) -> bool:
    return not await _failure(*words)


async def _failure(*words: str) -> str:
    """Why a program failed; "" where it did not."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=None, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    try:
        said, _ = await asyncio.wait_for(process.communicate(), BUILD_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"not done in {BUILD_SECONDS} s"
    return "" if process.returncode == 0 else said.decode(errors="replace").strip()[-300:] or "no reason"
