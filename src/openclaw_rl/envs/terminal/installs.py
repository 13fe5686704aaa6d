"""What scripts of a task would install, what of it is here already, and stand-ins for the programs that install.

Nothing can be fetched in a sandbox. Tests of Harbor's layout install pytest by curl, uv or pip before they run it: they
run as their author wrote them, beside programs of these names that do nothing, with a pytest from this Python.
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
"""packages of Python that the stand-ins stand for, pytest among them"""
_SYSTEM: Final = {"apt": "install", "apt-get": "install", "dnf": "install", "yum": "install", "apk": "add"}
_TOOLS: Final = frozenset(
    {"curl", "wget", "ca-certificates", "gnupg", "python3", "python3-pip", "python3-venv", "python-is-python3", "pipx"}
)
"""packages of a system that are only there to install others, or that every machine here has"""
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
    """Names that a script installs: packages of the system, packages of Python, and other commands that fetch."""

    system: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def any_here(self) -> bool:
        """Whether it installs anything."""
        return bool(self.system or self.python or self.others)


def installs_of(text: str) -> Installs:
    """What a shell script installs, by its words.

    >>> installs_of("apt-get update && apt-get install -y curl jq\\nuvx -p 3.13 -w pytest==8.4.1 pytest /tests")
    Installs(system=('curl', 'jq'), python=('pytest',), others=())
    """
    system: list[str] = []
    python: list[str] = []
    others: list[str] = []
    for words in _commands(text):
        program, rest = Path(words[0]).name, words[1:]
        if program in _SYSTEM and _SYSTEM[program] in rest:
            system += _names(rest[rest.index(_SYSTEM[program]) + 1 :])
        elif (installed := _of_python(program, rest)) is not None:
            python += installed
        elif program in ("curl", "wget"):
            others += [f"{program} {word}" for word in rest if "://" in word and not _HARMLESS.search(word)]
        elif program in _FETCHING and rest and rest[0] in _FETCHES:
            others.append(shlex.join(words)[:80])
    return Installs(system=_once(system), python=_once(python), others=_once(others))


def _of_python(program: str, rest: Sequence[str]) -> list[str] | None:
    """The packages of Python that a command installs; None where it is no such command."""
    if re.fullmatch(r"python[\d.]*", program) and list(rest[:2]) == ["-m", "pip"]:
        program, rest = "pip", rest[2:]
    if program == "uv" and rest[:1] == ["pip"]:
        program, rest = "pip", rest[1:]
    if re.fullmatch(r"pip[\d.]*|pipx", program) or (program == "uv" and rest[:1] in (["add"], ["tool"])):
        start = next((at for at, word in enumerate(rest) if word in ("install", "add")), None)
        return [] if start is None else _packages(_names(rest[start + 1 :]))
    if program in ("uvx", "uv"):
        named = [rest[at + 1] for at, word in enumerate(rest[:-1]) if word in _WITH]
        return _packages(each for name in named for each in name.split(","))
    return None


def _commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a script, as words; a line that cannot be read is passed over."""
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
    """The words that are no options, redirections, nor values of options."""
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
    """Of what a script installs, the names that are neither here nor stood in for."""
    system = [name for name in installs.system if name not in _TOOLS and not has_system(name)]
    return [*system, *(name for name in installs.python if not _is_here(name)), *installs.others]


def _is_here(name: str) -> bool:
    return name in CARRIED or (not name.startswith("-r ") and _closure([name]) is not None)


def on_this_machine(root: str | None) -> Callable[[str], bool]:
    """Whether a package of the system is installed below ``root``: Debian's lists, or a program of that name."""
    place = Path(root or "/")

    def there(name: str) -> bool:
        plain = name.partition("=")[0].partition(":")[0]
        lists = place / "var/lib/dpkg/info"
        known = (lists / f"{plain}.list").exists() or any(lists.glob(f"{plain}:*.list"))
        return known or any((place / folder / plain).exists() for folder in ("usr/bin", "bin", "usr/local/bin"))

    return there


# --- the packages of Python that tests import


def _closure(names: Iterable[str]) -> dict[str, metadata.Distribution] | None:
    """Packages of this Python with what they need; None where one is not here, or is more than Python."""
    waiting, known = list(names), dict[str, metadata.Distribution]()
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        try:
            known[name] = distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return None
        if any(file.suffix in (".so", ".pyd") for file in distribution.files or ()):
            return None
        plain = [need for need in distribution.requires or () if "extra ==" not in need and "sys_platform" not in need]
        waiting += [_SPECIFIER.sub("", need).lower() for need in plain if 'python_version < "3.1' not in need]
    return known


def provide(names: Iterable[str], cache: Path) -> Path:
    """A folder with pytest and these packages, copied once from this Python: to be shown to a sandbox, read-only.

    Raises ConfigError where there is no pytest here.
    """
    wanted = _closure(["pytest"])
    if wanted is None:
        raise ConfigError("these tasks are tested with pytest, which is not installed", remedy="pip install pytest")
    for name in names:
        wanted |= (_closure([name]) or {}) if name not in CARRIED else {}
    versions = sorted((name, each.version) for name, each in wanted.items())
    home = cache / "site" / hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:16]
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as place:
            whole = Path(place) / "site"
            for distribution in wanted.values():
                _copy(distribution, whole)
            whole.chmod(0o755)
            if not home.is_dir():
                shutil.move(whole, home)
    return home


def _copy(distribution: metadata.Distribution, place: Path) -> None:
    for file in distribution.files or ():
        source = Path(os.fspath(file.locate()))
        if ".." not in file.parts and source.is_file():
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place / file)
            (place / file).chmod(0o644)


# --- programs that stand in

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
    """Programs by their place in a sandbox, ``FOLDER/bin/NAME``; `pytest` runs through ``FOLDER/run_tests.py``."""
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


# How a task's machine is made, from `environment/setup.sh` or a Dockerfile: by its lines here, or as an image.

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
