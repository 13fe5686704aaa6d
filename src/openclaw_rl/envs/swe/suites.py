"""The Python that a repository's tests run with: a virtual environment to a version, set up once and kept.

It holds pytest, ruff and what the repository names as its needs, but nothing of the repository itself: that would be
another state of what an agent is asked to repair.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.envs.play.programs import find_program
from openclaw_rl.envs.swe.instances import Instance, SuiteSetup, unpack
from openclaw_rl.errors import ConfigError, EnvFailed

ALWAYS = ("pytest", "ruff")
BUILD_SECONDS = 1200
_COMPLETE = "openclaw-rl.json"
_DESCRIBED = ("pyproject.toml", "setup.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What tests are run with: the environment's folder, the folders that a sandbox must show, words for pytest."""

    home: str
    binds: tuple[str, ...]
    pytest: tuple[str, ...]


def suite(setup: SuiteSetup, *, repo: str, version: str, files: bytes, cache: Path) -> Suite:
    """The environment of a repository's version, set up now where it is not yet. Raises EnvFailed where it cannot be.

    ``files`` is the repository as a tar: what it says that it needs is installed.
    """
    python = setup.interpreter
    if python is None:
        python = _built(setup, repo=repo, version=version, files=files, cache=cache)
    elif not python.is_file():
        raise ConfigError(f"environments.json: there is no {python}", remedy="name the bin/python of an environment")
    return Suite(home=str(python.parent.parent), binds=find_program(str(python)).folders, pytest=setup.pytest)


def _built(setup: SuiteSetup, *, repo: str, version: str, files: bytes, cache: Path) -> Path:
    told = {"repo": repo, "version": version, "python": setup.python or sys.version, "packages": setup.packages}
    key = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]
    home = cache / f"{repo.replace('/', '__')}-{version or 'any'}-{key}"
    with _alone(cache / f"{home.name}.lock"):
        if not (home / _COMPLETE).is_file():
            shutil.rmtree(home, ignore_errors=True)
            _build(home, setup, version=version, files=files)
            (home / _COMPLETE).write_text(json.dumps(told), encoding="utf-8")
    return home / "bin" / "python"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time: episodes that begin together need the same environment."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _build(home: Path, setup: SuiteSetup, *, version: str, files: bytes) -> None:
    uv = shutil.which("uv")
    if setup.python is not None and uv is None:
        raise EnvFailed(f"Python {setup.python} for a repository's tests needs uv", remedy="pip install uv")
    python = str(home / "bin" / "python")
    if uv is not None:
        _run([uv, "venv", "-q", "--python", setup.python or sys.executable, str(home)])
        install = [uv, "pip", "install", "-q", "--compile-bytecode", "--python", python]
    else:
        _run([sys.executable, "-m", "venv", str(home)])
        install = [python, "-m", "pip", "install", "-q"]
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        unpack(files, source)
        own = [str(source)] if any((source / name).is_file() for name in _DESCRIBED) else []
        known = f"SETUPTOOLS_SCM_PRETEND_VERSION={version or '0.0.0'}"  # there is no history to read it from
        _run(["env", known, *install, *ALWAYS, *setup.packages, *own])
        _forget_code(home, source)


def _forget_code(home: Path, source: Path) -> None:
    """Of what was installed from ``source`` keep what names it, not its code."""
    for told in home.glob("lib/python*/site-packages/*.dist-info/direct_url.json"):
        if source.as_uri() in told.read_text(encoding="utf-8"):
            site = told.parents[1]
            for line in (told.parent / "RECORD").read_text(encoding="utf-8").splitlines():
                name = line.rsplit(",", 2)[0].strip('"')
                if not name.startswith((told.parent.name, "..")):
                    (site / name).unlink(missing_ok=True)


def _run(words: Sequence[str]) -> None:
    line = ["sh", "-c", 'umask 022; exec "$@"', "sh", *words]  # a sandbox reads it as nobody
    done = subprocess.run(line, capture_output=True, timeout=BUILD_SECONDS, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-600:]
        raise EnvFailed(
            f"an environment for a repository's tests could not be set up: {said}",
            remedy='name one that has all in environments.json: {"REPO": {"interpreter": ".../bin/python"}}',
        )


# What the tests say: verdicts by test, and what they are worth for an instance.

PASSED = "passed"
_GOOD = (PASSED, "xfailed")
SHOWN = 12
"""failing tests that are named"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The outcome of each test that ran, by its name as pytest has it; ``stopped`` says why the run did not end."""

    outcomes: Mapping[str, str]
    seconds: float
    output: str = ""
    stopped: str = ""

    def passes(self, test: str) -> bool:
        """Whether a test passed. A name that was cut at a space, as in SWE-bench's lists, means all that it begins."""
        if test in self.outcomes:
            return self.outcomes[test] in _GOOD
        meant = [outcome for name, outcome in self.outcomes.items() if name.partition(" ")[0] == test]
        return bool(meant) and all(outcome in _GOOD for outcome in meant)

    def named(self, outcome: str) -> list[str]:
        """The tests that came out so."""
        return [test for test, one in self.outcomes.items() if one == outcome or (outcome == PASSED and one in _GOOD)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """How many of an instance's tests pass: of those that failed, and of those that did not."""

    fixed: int
    failing: int
    kept: int
    passing: int

    @property
    def resolved(self) -> bool:
        return self.fixed == self.failing and self.kept == self.passing

    def score(self, *, partial: bool) -> float:
        """1 where all pass, else 0; ``partial``: the share that is fixed, times the share that still passes."""
        if self.resolved or not partial:
            return float(self.resolved)
        return self.fixed / max(self.failing, 1) * (self.kept / max(self.passing, 1))


def graded(instance: Instance, verdicts: Verdicts) -> Graded:
    """The verdicts, by the instance's two lists."""
    return Graded(
        fixed=_passing(instance.failing, verdicts),
        failing=len(instance.failing),
        kept=_passing(instance.passing, verdicts),
        passing=len(instance.passing),
    )


def _passing(tests: Sequence[str], verdicts: Verdicts) -> int:
    return sum(verdicts.passes(test) for test in tests)


def files_of(tests: Iterable[str]) -> list[str]:
    """The files that tests are in, each once."""
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


def told(verdicts: Verdicts) -> str:
    """The verdicts in a few lines, failing tests by name."""
    failed = [*verdicts.named("failed"), *verdicts.named("error")]
    head = f"{len(verdicts.named(PASSED))} passed, {len(failed)} failed in {verdicts.seconds:.1f} s"
    lines = [f"FAILED {test}" for test in failed[:SHOWN]]
    if len(failed) > SHOWN:
        lines.append(f"... and {len(failed) - SHOWN} more")
    return "\n".join([*lines, f"[{verdicts.stopped or head}]"])
