"""Runs a Harbor task's tests as their author wrote them, and accepts their result only if their controls fail."""

from __future__ import annotations

import fnmatch
import io
import json
import secrets
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from openclaw_rl.envs.sandbox import HOME, Sandbox
from openclaw_rl.envs.terminal.installs import Built, files_in, installs_of, missing, stand_ins
from openclaw_rl.envs.verifier.reports import PASSED, Control, Report, control, forged, run_sealed, source, test_names

REWARDS: Final = ("/logs/verifier/reward.txt", "/logs/verifier/reward.json")
_INI: Final = ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
_UNTESTED: Final = "the task has neither test.sh nor test_*.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTests:
    """A task's tests: files by path in the sandbox, and the script that runs them, if any.

    ``shares`` pays the share of the tests that pass, instead of Harbor's all or nothing.
    """

    files: Mapping[str, bytes]
    script: str | None
    machine: Built
    shares: bool

    @classmethod
    def of(cls, place: Path, machine: Built, *, shares: bool) -> TaskTests:
        """Read the tests of a task's folder."""
        files = {f"/tests/{file.relative_to(place / 'tests')}": file.read_bytes() for file in files_in(place / "tests")}
        script = next((file for name in ("tests/test.sh", "run-tests.sh") if (file := place / name).is_file()), None)
        text = script.read_text(encoding="utf-8") if script else None
        return cls(files=files, script=text, machine=machine, shares=shares)

    @property
    def packages(self) -> tuple[str, ...]:
        """The Python packages that the tests install."""
        return installs_of(self.script or "").python

    def lacking(self, *, has_system: Callable[[str], bool]) -> str:
        """Return the reason why these tests cannot run here, or ""."""
        names = missing(installs_of(self.script or ""), has_system=has_system)
        if names:
            return f"its tests install {', '.join(names)}, which is not here"
        return "" if self.script is not None or self._modules else _UNTESTED

    async def score(self, sandbox: Sandbox, *, site: Path) -> float:
        """Return a score from 0 to 1; damage to the machine or to the tests scores 0 and raises nothing.

        The controls run first or last, at random: code that remembers its first run cannot identify them.
        """
        controls = {path: replacement for path, text in self._texts().items() if (replacement := control(text))}
        checked = bool(controls) and self._by_pytest
        try:
            early = await self._controlled(sandbox, site, controls) if checked and secrets.randbelow(2) else None
            worth = (await self._worth(sandbox, site, self.files)).score
            if worth and checked:
                run = early or await self._controlled(sandbox, site, controls)
                return 0.0 if self._is_forged(run, controls, worth) else worth
            return worth
        except OSError:  # the sandbox is not writable: the agent has filled or blocked it
            return 0.0

    async def _controlled(self, sandbox: Sandbox, site: Path, controls: Mapping[str, Control]) -> _Worth:
        """Run the controls in place of the tests."""
        texts = {path: replacement.text.encode() for path, replacement in controls.items()}
        return await self._worth(sandbox, site, {**self.files, **texts})

    def _is_forged(self, run: _Worth, controls: Mapping[str, Control], worth: float) -> bool:
        """Return True if the controls score at least as much as the tests, or pass a test that must fail.

        With shares a control also scores, but less: its copies with additional comparisons pass, the others fail.
        """
        pays = run.score > 0 and run.score >= worth and self.script is not None
        return pays or bool(forged(run.report.outcomes, controls))

    @property
    def _by_pytest(self) -> bool:
        """True if tests in the task's own files decide the score, rather than a script alone."""
        named = self.script is None or "pytest" in self.script
        return named and any(True for text in self._texts().values() for _ in test_names(text))

    def _texts(self) -> dict[str, str]:
        return {path: data.decode(errors="replace") for path, data in self.files.items() if path.endswith(".py")}

    @property
    def _modules(self) -> list[str]:
        return sorted(path for path in self.files if fnmatch.fnmatch(PurePosixPath(path).name, "test_*.py"))

    async def _worth(self, sandbox: Sandbox, site: Path, files: Mapping[str, bytes]) -> _Worth:
        """Run these files once in place of the task's; raise OSError if they cannot be written."""
        if self.script is None:
            await _place(sandbox, files)
            settings = {"site": [str(site)], "cwd": self.machine.folder, "env": self._env("")}
            report = await run_sealed(sandbox, "python3", settings, [*self._words, *self._modules])
            return _Worth(report=report, score=self._of_tests(report, self._modules))
        return await self._by_script(sandbox, self.script, site, files)

    async def _by_script(self, sandbox: Sandbox, script: str, site: Path, files: Mapping[str, bytes]) -> _Worth:
        home = f"/opt/{secrets.token_hex(8)}"
        programs = {path: text.encode() for path, text in stand_ins(home, site=str(site), words=self._words).items()}
        text = "\n".join([*self.machine.exports, script]).encode()
        support = {f"{home}/run_tests.py": source().encode(), f"{home}/test.sh": text, **programs}
        local = f"{HOME}/.local/bin"  # an installer would have used this folder
        names = " ".join(PurePosixPath(path).name for path in programs)
        then = f"mkdir -p {local}; (cd {local} && rm -rf env {names}; : > env); cp {home}/bin/* {local}"
        await _place(sandbox, {**files, **support}, then=then)
        settings: dict[str, Any] = {
            "script": ["bash", f"{home}/test.sh"],
            "runs": f"{home}/runs",
            "rewards": REWARDS,
            "watched": [home, local],
            "kept": ["/tests"],
            "cwd": self.machine.folder,
            "env": {**self._env(f"{home}/bin:"), "OPENCLAW_RL_REPORT": f"{home}/runs"},
        }
        report = await run_sealed(sandbox, "python3", settings)
        return _Worth(report=report, score=self._of_script(report))

    def _env(self, first: str) -> dict[str, str]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"TEST_DIR": "/tests", "PATH": f"{first}{path}"}

    @property
    def _words(self) -> list[str]:
        """Arguments for pytest: configuration outside the tests is ignored, since an agent could have written it."""
        configured = any(f"/tests/{name}" in self.files for name in _INI)
        return [
            *("-p", "no:cacheprovider", "--confcutdir=/tests"),
            *([] if configured else ["-c", "/dev/null", "--rootdir=/tests"]),
        ]

    def _of_script(self, report: Report) -> float:
        """Return the score that the script wrote, else its tests' score, else 1 if it exited with 0."""
        if report.exit is None or report.exit < 0 or (report.runs and not self._whole(report)):
            return 0.0
        if not report.outcomes and self._by_pytest:
            return 0.0
        reported = [path for path in self._modules if any(_is_of(test, path) for test in report.outcomes)]
        written = _written(report.rewards)
        if report.outcomes and (self.shares or (written is None and self.script is not None)):
            return self._of_tests(report, reported)
        if written is not None:
            return written if not reported or not self._unreported(report, reported) else 0.0
        return float(report.exit == 0)

    def _of_tests(self, report: Report, modules: Sequence[str]) -> float:
        """Return 1 if all tests ran, none failed and one passed; with ``shares``, the share that passed."""
        if not self._whole(report):
            return 0.0
        lacking = self._unreported(report, modules)
        passing = sum(outcome in (PASSED, "xfailed") for outcome in report.outcomes.values())
        if self.shares:
            return passing / max(len(report.outcomes) + lacking, 1)
        good = all(outcome in (PASSED, "xfailed", "skipped") for outcome in report.outcomes.values())
        return float(good and passing > 0 and not lacking)

    def _whole(self, report: Report) -> bool:
        """Return True if pytest ran to its end, and skipped no test unless the author's tests use skips."""
        skips = "skip" in "".join(self._texts().values())
        return report.whole and not report.stopped and (skips or "skipped" not in report.outcomes.values())

    def _unreported(self, report: Report, modules: Sequence[str]) -> int:
        """Count the tests in these files without a report: the code under test has removed them."""
        texts = self._texts()
        ran = {test.partition("[")[0] for test in report.outcomes}
        return sum(
            not any(test.endswith(f"::{name}") and _is_of(test, path) for test in ran)
            for path in modules
            for name in test_names(texts[path])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worth:
    report: Report
    score: float


async def _place(sandbox: Sandbox, files: Mapping[str, bytes], *, then: str = ":") -> None:
    """Replace the current tests and results with these files, in one command; raise OSError if that fails."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
    script = f"set -e; rm -rf /tests /logs; mkdir -p /tests /logs/verifier; tar -xf - -C / --no-same-owner; {then}"
    result = await sandbox.run(["sh", "-c", script], stdin=packed.getvalue(), cwd="/")
    if not result.ok:
        raise OSError(f"the tests could not be put in place: {result.output.strip()[-200:] or result.stopped}")


def _is_of(test: str, path: str) -> bool:
    """Return True if a test's pytest name belongs to this file."""
    file = test.partition("::")[0]
    return path == file or path.endswith(f"/{file}")


def _written(rewards: Mapping[str, str | None]) -> float | None:
    """Return the score in a script's reward files, or None if there is no readable one."""
    text, data = (rewards.get(place) for place in REWARDS)
    try:
        if text is not None:
            return max(0.0, min(1.0, float(text.strip())))
        if data is not None:
            reward = json.loads(data)
            return max(0.0, min(1.0, float(reward["reward"] if "reward" in reward else next(iter(reward.values())))))
    except (ValueError, TypeError, KeyError, StopIteration, RecursionError):
        return None
    return None
