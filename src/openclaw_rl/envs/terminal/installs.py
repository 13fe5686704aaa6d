"""Analyzes a task's install scripts, checks them against the packages here, and replaces the installers.

A sandbox cannot download anything. Tests in Harbor's layout install pytest by curl, uv or pip before they run it: they
run as their author wrote them, with placeholder programs of these names that do nothing, and a pytest from this Python.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata as metadata
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from openclaw_rl.envs.sandbox import HOME
from openclaw_rl.errors import ConfigError, EnvFailed

CARRIED: Final = frozenset({"pytest", "pytest-json-ctrf", "uv", "pip", "setuptools", "wheel"})
"""Python packages that the placeholder programs cover, pytest among them"""
_SYSTEM: Final = {"apt": "install", "apt-get": "install", "dnf": "install", "yum": "install", "apk": "add"}
_TOOLS: Final = frozenset(
    {"curl", "wget", "ca-certificates", "gnupg", "python3", "python3-pip", "python3-venv", "python-is-python3", "pipx"}
)
"""system packages that only serve to install others, or that every machine here has"""
_FETCHING: Final = ("npm", "npx", "yarn", "pnpm", "cargo", "conda", "mamba", "gem", "go", "git", "rustup", "snap")
_FETCHES: Final = frozenset({"install", "i", "ci", "add", "get", "clone", "create"})
_HARMLESS: Final = re.compile(r"astral\.sh|localhost|127\.0\.0\.1|^-|^[^/:]*$")
_SEPARATORS: Final = re.compile(r"&&|\|\||[;|\n]")
_SPECIFIER: Final = re.compile(r"[\[<>=!~;@ ].*")
_BEFORE: Final = ("if", "then", "else", "do", "!", "sudo", "exec", "{", "(")
_WITH: Final = ("-w", "--with", "--from")
_VALUES: Final = (*_WITH, "-p", "--python", "--index-url", "-i", "--extra-index-url", "--target", "-t", "--timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installs:
    """Names that a script installs: system packages, Python packages, and other commands that download."""

    system: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def any_here(self) -> bool:
        """True if the script installs anything."""
        return bool(self.system or self.python or self.others)


def installs_of(text: str) -> Installs:
    """Return the packages and downloads of a shell script, from its words.

    >>> installs_of("apt-get update && apt-get install -y curl jq\\nuvx -p 3.13 -w pytest==8.4.1 pytest /tests")
    Installs(system=('curl', 'jq'), python=('pytest',), others=())
    """
    system: list[str] = []
    python: list[str] = []
    others: list[str] = []
    for words in _commands(text):
        program, arguments = Path(words[0]).name, words[1:]
        if program in _SYSTEM and _SYSTEM[program] in arguments:
            system += _names(arguments[arguments.index(_SYSTEM[program]) + 1 :])
        elif (installed := _of_python(program, arguments)) is not None:
            python += installed
        elif program in ("curl", "wget"):
            others += [f"{program} {word}" for word in arguments if "://" in word and not _HARMLESS.search(word)]
        elif program in _FETCHING and arguments and arguments[0] in _FETCHES:
            others.append(shlex.join(words)[:80])
    return Installs(system=_once(system), python=_once(python), others=_once(others))


def _of_python(program: str, rest: Sequence[str]) -> list[str] | None:
    """Return the Python packages that a command installs, or None if it is not such a command."""
    if re.fullmatch(r"python[\d.]*", program) and list(rest[:2]) == ["-m", "pip"]:
        program, rest = "pip", rest[2:]
    if program == "uv" and rest[:1] == ["pip"]:
        program, rest = "pip", rest[1:]
    if re.fullmatch(r"pip[\d.]*|pipx", program) or (program == "uv" and rest[:1] in (["add"], ["tool"])):
        start = next((at for at, word in enumerate(rest) if word in ("install", "add")), None)
        return [] if start is None else _packages(_names(rest[start + 1 :]))
    if program in ("uvx", "uv"):
        named = [rest[at + 1] for at, word in enumerate(rest[:-1]) if word in _WITH]
        return _packages(package for name in named for package in name.split(","))
    return None


def _commands(text: str) -> Iterator[list[str]]:
    """Yield a script's simple commands as words; skip lines that cannot be parsed."""
    joined = re.sub(r"\\\s*\n", " ", text)
    for line in joined.splitlines():
        for part in _SEPARATORS.split(line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                continue
            while words and (words[0] in _BEFORE or _sets(words[0])):
                words = words[1:]
            if words:
                yield words


def _sets(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _names(words: Iterable[str]) -> list[str]:
    """Return the words that are not options, redirections or values of options."""
    named: list[str] = []
    before = ""
    for word in words:
        if word[:1] not in ("-", ">", "<", "&", "$") and not re.match(r"\d?[<>]", word) and before not in _VALUES:
            named.append(f"-r {word}" if before in ("-r", "--requirement") else word)
        before = word
    return named


def _packages(names: Iterable[str]) -> list[str]:
    return [_SPECIFIER.sub("", name).lower().replace("_", "-") if name[:2] != "-r" else name for name in names if name]


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def missing(installs: Installs, *, has_system: Callable[[str], bool]) -> list[str]:
    """Return the names in ``installs`` that are neither here nor covered by a placeholder program."""
    system = [name for name in installs.system if name not in _TOOLS and not has_system(name)]
    return [*system, *(name for name in installs.python if not _is_here(name)), *installs.others]


def _is_here(name: str) -> bool:
    return name in CARRIED or (not name.startswith("-r ") and _closure([name]) is not None)


def on_this_machine(root: str | None) -> Callable[[str], bool]:
    """Return a test for system packages below ``root``: in Debian's lists, or as a program of that name."""
    place = Path(root or "/")

    def there(name: str) -> bool:
        plain = name.partition("=")[0].partition(":")[0]
        lists = place / "var/lib/dpkg/info"
        listed = (lists / f"{plain}.list").exists() or any(lists.glob(f"{plain}:*.list"))
        return listed or any((place / folder / plain).exists() for folder in ("usr/bin", "bin", "usr/local/bin"))

    return there


# --- the Python packages that tests import


def _closure(names: Iterable[str]) -> dict[str, metadata.Distribution] | None:
    """Return packages of this Python with their dependencies, or None if one is missing or contains compiled code."""
    waiting, distributions = list(names), dict[str, metadata.Distribution]()
    while waiting:
        name = waiting.pop()
        if name in distributions:
            continue
        try:
            distributions[name] = distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return None
        if any(file.suffix in (".so", ".pyd") for file in distribution.files or ()):
            return None
        plain = [need for need in distribution.requires or () if "extra ==" not in need and "sys_platform" not in need]
        waiting += [_SPECIFIER.sub("", need).lower() for need in plain if 'python_version < "3.1' not in need]
    return distributions


def provide(names: Iterable[str], cache: Path) -> Path:
    """Return a folder with pytest and these packages, copied once from this Python, to mount read-only in a sandbox.

    Raises ConfigError if pytest is not installed.
    """
    distributions = _closure(["pytest"])
    if distributions is None:
        raise ConfigError("these tasks are tested with pytest, which is not installed", remedy="pip install pytest")
    for name in names:
        distributions |= (_closure([name]) or {}) if name not in CARRIED else {}
    versions = sorted((name, package.version) for name, package in distributions.items())
    home = cache / "site" / hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:16]
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as place:
            target = Path(place) / "site"
            for distribution in distributions.values():
                _copy(distribution, target)
            target.chmod(0o755)
            if not home.is_dir():
                shutil.move(target, home)
    return home


def _copy(distribution: metadata.Distribution, place: Path) -> None:
    for file in distribution.files or ():
        source = Path(os.fspath(file.locate()))
        if ".." not in file.parts and source.is_file():
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place / file)
            (place / file).chmod(0o644)


# --- placeholder programs

_NOTHING: Final = "#!/bin/bash\nexit 0\n"
_SKIP: Final = """
while [ $# -gt 0 ]; do
  case "$1" in
    -p|--python|-w|--with|--from|--index-url|--project|--directory) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || exit 0
exec "$@"
"""
_UV: Final = """#!/bin/bash
word="$1"; shift
case "$word" in
  run) ;;
  tool) [ "$1" = run ] || exit 0; shift ;;
  venv)
    for last in .venv "$@"; do case "$last" in -*) ;; *) folder="$last" ;; esac; done
    mkdir -p "$folder/bin"; : > "$folder/bin/activate"; exit 0 ;;
  *) exit 0 ;;
esac
"""
_FETCH: Final = """#!/bin/bash
case "$*" in *astral.sh*) exit 0 ;; esac
real=$(PATH=@path@ command -v @name@) && exec "$real" "$@"
exit 6
"""
_PIP: Final = """#!/bin/bash
case " $* " in *" install "*) exit 0 ;; esac
real=$(PATH=@path@ command -v @name@) && exec "$real" "$@"
exit 0
"""
_PYTHON: Final = """#!/bin/bash
real=$(PATH=@path@ command -v @name@)
if [ "$1" = -m ]; then
  case "$2" in
    pytest) shift 2; exec @run@ @here@ @words@ "$@" ;;
    pip) shift 2; exec @shims@/pip "$@" ;;
    venv) [ -z "${!#}" ] || mkdir -p "${!#}/bin" && : > "${!#}/bin/activate"; exit 0 ;;
  esac
fi
[ -n "$real" ] && exec "$real" "$@"
exit 127
"""
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def stand_ins(folder: str, *, site: str, words: Sequence[str]) -> Mapping[str, str]:
    """Return placeholder programs by path, ``FOLDER/bin/NAME``; `pytest` runs through ``FOLDER/run_tests.py``."""
    runner = f"{folder}/run_tests.py"
    marks = {
        "@path@": SYSTEM_PATH,
        "@shims@": f"{folder}/bin",
        "@run@": f'env PATH="${{PATH#{folder}/bin:}}" "$(PATH={SYSTEM_PATH} command -v python3)" -I {runner}',
        "@here@": shlex.quote(json.dumps({"site": [site], "here": True})),
        "@words@": shlex.join(words),
    }
    plain = shlex.quote(json.dumps({"site": [site]}))
    texts = {
        **dict.fromkeys(("apt", "apt-get", "apk", "dnf", "yum"), _NOTHING),
        **dict.fromkeys(("curl", "wget"), _FETCH),
        **dict.fromkeys(("pip", "pip3"), _PIP),
        **dict.fromkeys(("python", "python3"), _PYTHON),
        "uv": _UV + _SKIP,
        "uvx": "#!/bin/bash" + _SKIP,
        "pytest": f'#!/bin/bash\nexec @run@ {plain} @words@ "$@"\n',
    }
    return {f"{folder}/bin/{name}": _filled(text, {**marks, "@name@": name}) for name, text in texts.items()}


def _filled(text: str, marks: Mapping[str, str]) -> str:
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text


# The build of a task's machine, from `environment/setup.sh` or a Dockerfile: by its lines here, or as an image.

BUILD_SECONDS: Final = 1800
_PLAIN: Final = re.compile(r"(^|/)(ubuntu|debian|python|buildpack-deps|ubuntu-\d\d-\d\d|python-3-\d+)(:|@|$)")
"""images of a plain system, which this machine's programs replace"""
_PROGRAMS: Final = {"node": "node", "golang": "go", "rust": "cargo", "gcc": "gcc", "perl": "perl", "bash": "bash"}
"""images that add one program, which this machine may have"""
_INSTALLERS: Final = "".join(f"{name}() {{ :; }}; " for name in ("apt", "apt-get", "apk", "pip", "pip3", "uv", "curl"))


@dataclass(slots=True)
class Built:
    """The build of a task's machine: its files by path in the sandbox, scripts, and the agent's initial folder.

    ``refused`` are the reasons why this machine's programs do not suffice; ``file`` is the Dockerfile of an image.
    """

    folder: str = HOME
    placed: dict[str, Path] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    file: Path | None = None


def machine_of(place: Path, *, has_system: Callable[[str], bool]) -> Built:
    """Return the build of the machine for a task's folder. ``has_system`` tests for a system package."""
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
    for word, arguments in _instructions(file.read_text(encoding="utf-8")):
        if word == "FROM":
            built.refused += _base(arguments, has_system)
        elif word == "WORKDIR":
            built.folder = arguments.strip()
            built.scripts.append(f"mkdir -p {shlex.quote(built.folder)}")
        elif word == "ENV":
            built.exports.append(f"export {arguments if '=' in arguments else arguments.replace(' ', '=', 1)}")
        elif word in ("COPY", "ADD"):
            built.placed |= _copied(arguments, file.parent, built.folder)
        elif word == "RUN":
            built.refused += _installs(arguments, has_system, "the Dockerfile")
            lines = [
                *built.exports,
                f"mkdir -p {shlex.quote(built.folder)} && cd {shlex.quote(built.folder)}",
                arguments,
            ]
            built.scripts.append("\n".join([_INSTALLERS if installs_of(arguments).any_here else "", *lines]))
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
    """Yield the instructions of a Dockerfile, with continued lines joined."""
    joined = re.sub(r"\\\s*\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    for line in joined.splitlines():
        word, _, arguments = line.strip().partition(" ")
        if word:
            yield word.upper(), arguments.strip()


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
    """Return all files below a folder."""
    return [file for file in sorted(folder.rglob("*")) if file.is_file()]


# --- an image


async def build_image(tool: str, file: Path) -> str:
    """Return the image of a Dockerfile, built by podman or docker if it is missing; raise EnvFailed if that fails."""
    digest = hashlib.sha256()
    for source in files_in(file.parent):
        digest.update(f"{source.relative_to(file.parent)}\0".encode() + source.read_bytes())
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
    """Return the reason for a program's failure, or ""."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=None, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), BUILD_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"not done in {BUILD_SECONDS} s"
    return "" if process.returncode == 0 else output.decode(errors="replace").strip()[-300:] or "no reason"
