"""What scripts of a task would install, what of it is here already, and stand-ins for the programs that install.

Nothing can be fetched in a sandbox. Tests of Harbor's layout install pytest by curl, uv or pip before they run it: they
run as their author wrote them, beside programs of these names that do nothing, with a pytest from this Python.
"""

from __future__ import annotations

import hashlib
import importlib.metadata as metadata
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from openclaw_rl.errors import ConfigError

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
