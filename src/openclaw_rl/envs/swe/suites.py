"""The Python environment for a repository's tests: a virtual environment per version, built once and cached.

It contains pytest, ruff and the repository's declared requirements, but not the repository's own code: an installed
copy would differ from the state that the agent repairs.
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
    """A test environment: its folder, the host folders that a sandbox must expose, and arguments for pytest."""

    home: str
    binds: tuple[str, ...]
    pytest: tuple[str, ...]


def suite(setup: SuiteSetup, *, repo: str, version: str, files: bytes, cache: Path) -> Suite:
    """Return the environment for a repository's version, built if it is missing; raise EnvFailed if that fails.

    ``files`` is the repository as a tar: its declared requirements are installed.
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
    """Hold the lock: episodes that start together need the same environment."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
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
        requirements = [str(source)] if any((source / name).is_file() for name in _DESCRIBED) else []
        variable = f"SETUPTOOLS_SCM_PRETEND_VERSION={version or '0.0.0'}"  # there is no history
        _run(["env", variable, *install, *ALWAYS, *setup.packages, *requirements])
        _forget_code(home, source)


def _forget_code(home: Path, source: Path) -> None:
    """Delete the code installed from ``source``, but keep its metadata."""
    for told in home.glob("lib/python*/site-packages/*.dist-info/direct_url.json"):
        if source.as_uri() in told.read_text(encoding="utf-8"):
            site = told.parents[1]
            for line in (told.parent / "RECORD").read_text(encoding="utf-8").splitlines():
                name = line.rsplit(",", 2)[0].strip('"')
                if not name.startswith((told.parent.name, "..")):
                    (site / name).unlink(missing_ok=True)


def _run(words: Sequence[str]) -> None:
    line = ["sh", "-c", 'umask 022; exec "$@"', "sh", *words]  # a sandbox reads the files as an unprivileged user
    result = subprocess.run(line, capture_output=True, timeout=BUILD_SECONDS, check=False)
    if result.returncode != 0:
        output = (result.stderr or result.stdout).decode(errors="replace").strip()[-600:]
        raise EnvFailed(
            f"an environment for a repository's tests could not be set up: {output}",
            remedy='name one that has all in environments.json: {"REPO": {"interpreter": ".../bin/python"}}',
        )


# Test results: a verdict per test, and the grade of an instance.

PASSED = "passed"
_GOOD = (PASSED, "xfailed")
SHOWN = 12
"""most failing tests listed by name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The outcome of each test that ran, by its name in pytest's form; ``stopped`` is the reason for an early stop."""

    outcomes: Mapping[str, str]
    seconds: float
    output: str = ""
    stopped: str = ""

    def passes(self, test: str) -> bool:
        """Return True if a test passed. A name cut at a space, as in SWE-bench's lists, covers all tests that it
        begins.
        """
        if test in self.outcomes:
            return self.outcomes[test] in _GOOD
        matches = [outcome for name, outcome in self.outcomes.items() if name.partition(" ")[0] == test]
        return bool(matches) and all(outcome in _GOOD for outcome in matches)

    def named(self, outcome: str) -> list[str]:
        """Return the tests with this outcome; "passed" includes expected failures."""
        return [
            test
            for test, actual in self.outcomes.items()
            if actual == outcome or (outcome == PASSED and actual in _GOOD)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """Counts of an instance's tests that pass: of the initially failing ones, and of the initially passing ones."""

    fixed: int
    failing: int
    kept: int
    passing: int

    @property
    def resolved(self) -> bool:
        return self.fixed == self.failing and self.kept == self.passing

    def score(self, *, partial: bool) -> float:
        """Return 1 if all tests pass, else 0; ``partial``: the fixed share times the share that still passes."""
        if self.resolved or not partial:
            return float(self.resolved)
        return self.fixed / max(self.failing, 1) * (self.kept / max(self.passing, 1))


def graded(instance: Instance, verdicts: Verdicts) -> Graded:
    """Grade the verdicts by the instance's two lists."""
    return Graded(
        fixed=_passing(instance.failing, verdicts),
        failing=len(instance.failing),
        kept=_passing(instance.passing, verdicts),
        passing=len(instance.passing),
    )


def _passing(tests: Sequence[str], verdicts: Verdicts) -> int:
    return sum(verdicts.passes(test) for test in tests)


def files_of(tests: Iterable[str]) -> list[str]:
    """Return the files that contain these tests, without duplicates."""
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


def told(verdicts: Verdicts) -> str:
    """Summarize the verdicts in a few lines, with failing tests by name."""
    failed = [*verdicts.named("failed"), *verdicts.named("error")]
    head = f"{len(verdicts.named(PASSED))} passed, {len(failed)} failed in {verdicts.seconds:.1f} s"
    lines = [f"FAILED {test}" for test in failed[:SHOWN]]
    if len(failed) > SHOWN:
        lines.append(f"... and {len(failed) - SHOWN} more")
    return "\n".join([*lines, f"[{verdicts.stopped or head}]"])
