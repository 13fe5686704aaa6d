"""Evaluates changes to an instance: the gate, a fresh copy of the repository, its tests staged there, the verdicts."""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from openclaw_rl.envs.sandbox import CommandResult, Sandbox, SandboxSettings, open_sandbox
from openclaw_rl.envs.swe.instances import Instance, SuiteSetup, setup_of, tree
from openclaw_rl.envs.swe.mutations import LARGEST, changes, paths, refusal
from openclaw_rl.envs.swe.suites import Graded, Suite, Verdicts, files_of, graded, suite
from openclaw_rl.envs.verifier.reports import control, forged, run_sealed, source
from openclaw_rl.errors import EnvFailed

# A sandbox with a repository in it: its tests, its diff, the linter's findings, and text search.

REPOSITORY: Final = "/testbed"
"""path of the repository, as in SWE-bench's images"""
RUN_TESTS: Final = "/opt/bin/run-tests"
SUITE_SECONDS: Final = 300.0
LARGEST_TEST: Final = 1 << 20
"""most bytes in a test file"""
_PYTHON: Final = "/opt/venv/bin/python"
_RUNNER: Final = "/opt/lib/run_tests.py"
_IGNORED: Final = "__pycache__/\\n*.pyc\\n.pytest_cache/\\n.ruff_cache/\\n"
_PLACE: Final = f'set -e; mkdir -p {REPOSITORY} /opt/bin; ln -s "$1" /opt/venv; tar -xf - -C {REPOSITORY}'
_COMMIT: Final = (
    f"set -e; cd {REPOSITORY}; git init -q -b main .; printf '{_IGNORED}' >> .git/info/exclude; git add -A -f;"
    " git -c user.name=agent -c user.email=agent@localhost -c gc.auto=0 commit -q --allow-empty -m base;"
    " git rev-parse HEAD"
)
_DIFF: Final = (
    f'set -e; cd {REPOSITORY}; cp .git/index "$1.index" 2>/dev/null || true; export GIT_INDEX_FILE="$1.index";'
    " git add -A; git -c core.quotePath=false diff --cached --no-ext-diff --no-textconv --no-renames --no-color"
    ' --src-prefix=a/ --dst-prefix=b/ "$2" > "$1"'
)
_SETTINGS: Final = {"path": [f"{REPOSITORY}/src", REPOSITORY], "cwd": REPOSITORY}
_WORDS: Final = ("-q", "-p", "no:cacheprovider")
_RULES: Final = "E9,F63,F7,F82"
"""syntax errors, comparisons that are always wrong, undefined names"""


class Workspace:
    """A repository in a sandbox. Close it after use."""

    def __init__(self, sandbox: Sandbox, words: Sequence[str]) -> None:
        """``words`` are arguments for pytest."""
        self.sandbox = sandbox
        self._words = words
        self._base = ""

    @classmethod
    async def open(cls, settings: SandboxSettings, files: bytes, suite: Suite) -> Workspace:
        """Open a new sandbox with the repository's files and its test environment."""
        binds = tuple(dict.fromkeys((*settings.binds, *suite.binds)))
        sandbox = await open_sandbox(replace(settings, binds=binds))
        try:
            result = await sandbox.run(["sh", "-c", _PLACE, "sh", suite.home], stdin=files)
            if not result.ok:
                raise EnvFailed(f"a repository could not be unpacked: {result.output.strip() or result.stopped}")
            words = [_PYTHON, "-I", _RUNNER, json.dumps(_SETTINGS), *_WORDS, *suite.pytest]
            script = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
            await sandbox.write(RUN_TESTS, script.encode(), executable=True)
            await sandbox.write(_RUNNER, source().encode())
        except BaseException:
            await sandbox.close()
            raise
        return cls(sandbox, (*_WORDS, *suite.pytest))

    async def commit(self) -> None:
        """Make the folder a git repository with one commit of the current files."""
        result = await self.sandbox.run(["sh", "-c", _COMMIT], cwd=REPOSITORY)
        if not result.ok:
            raise EnvFailed(f"a repository could not be made: {result.output.strip() or result.stopped}")
        self._base = result.output.split()[-1]

    async def diff(self) -> str:
        """Return the changes since `commit` as a patch, cut if it is too large for any gate.

        Raises OSError if the agent left no repository to compare with. Seal the sandbox before a patch counts.
        """
        place = f"/tmp/{secrets.token_hex(8)}"
        result = await self.sandbox.run(["sh", "-c", _DIFF, "sh", place, self._base], cwd="/")
        if not result.ok:
            raise OSError(f"git cannot tell what was changed: {result.output.strip()[-200:] or result.stopped}")
        return (await self.sandbox.read(place, most=LARGEST + 1)).decode(errors="replace")

    async def apply(self, patch: str) -> bool:
        """Apply a patch; return True on success. Adds a missing final newline, without which git rejects the patch."""
        if not patch.strip():
            return True
        text = patch if patch.endswith("\n") else f"{patch}\n"
        words = ["git", "apply", "--whitespace=nowarn", "-"]
        return (await self.sandbox.run(words, cwd=REPOSITORY, stdin=text.encode(errors="replace"))).ok

    async def test(self, words: Sequence[str], *, seconds: float = SUITE_SECONDS) -> Verdicts:
        """Run tests: files, or names in pytest's form; all tests if ``words`` is empty."""
        report = await run_sealed(self.sandbox, _PYTHON, _SETTINGS, [*self._words, *words], seconds=seconds)
        return Verdicts(
            outcomes=report.outcomes,
            seconds=report.seconds,
            output=report.output,
            stopped=report.stopped or ("" if report.whole else "the tests were broken off"),
        )

    async def read(self, path: str) -> str | None:
        """Return a text file of the repository, or None if it cannot be read."""
        try:
            return (await self.sandbox.read(f"{REPOSITORY}/{path}", most=LARGEST_TEST)).decode(errors="replace")
        except OSError:
            return None

    async def write(self, path: str, text: str) -> None:
        await self.sandbox.write(f"{REPOSITORY}/{path}", text.encode())

    async def lint(self, patch: str) -> str:
        """Return ruff's findings for the patch's Python files, one per line."""
        files = [change.path for change in changes(patch) if change.path.endswith(".py")]
        if not files:
            return ""
        words = ["check", "--isolated", "--no-cache", "--quiet", "--select", _RULES, "--output-format", "concise"]
        result = await self._there(_PYTHON, "-m", "ruff", *words, *files)
        return "" if result.ok else "\n".join(line for line in result.output.splitlines() if "No such file" not in line)

    async def search(self, pattern: str, path: str) -> str:
        """Return the lines below ``path`` that match an extended regular expression."""
        words = ["grep", "-rnIE", "--exclude-dir=.git", "-e", pattern, "--", path or "."]
        result = await self._there(*words)
        return result.output or (
            "no line holds it" if result.code == 1 else f"error: {result.stopped or 'grep failed'}"
        )

    async def _there(self, *words: str) -> CommandResult:
        """Run a program in the repository. The agent may have removed it, which is not a fault of the sandbox."""
        return await self.sandbox.run(["sh", "-c", f'cd {REPOSITORY} && exec "$@"', "sh", *words], cwd="/")

    async def close(self) -> None:
        await self.sandbox.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of an evaluation: the tests' grade, or the reason why they did not run."""

    grade: Graded | None = None
    refused: str = ""

    def score(self, *, partial: bool) -> float:
        """Return a score from 0 to 1."""
        return self.grade.score(partial=partial) if self.grade is not None else 0.0

    @property
    def told(self) -> str:
        """A summary in one line."""
        if self.grade is None:
            return f"[not resolved: {self.refused}]"
        grade = self.grade
        head = "resolved" if grade.resolved else "not resolved"
        fixed = f"{grade.fixed} of {grade.failing} failing tests pass now"
        return f"[{head}: {fixed}, {grade.kept} of {grade.passing} others still pass]"


class Evaluator:
    """Opens an instance's repository, and evaluates changes to it."""

    def __init__(
        self, folder: Path, setups: Mapping[str, SuiteSetup], *, sandbox: SandboxSettings, cache: Path
    ) -> None:
        """``folder`` contains the repositories, ``cache`` the virtual environments for their tests."""
        self._folder, self._setups, self._sandbox, self._cache = folder, setups, sandbox, cache

    async def workspace(self, instance: Instance) -> Workspace:
        """Open a sandbox with the repository in the instance's initial state."""
        files = await asyncio.to_thread(tree, self._folder, instance)
        return await Workspace.open(self._sandbox, files, await asyncio.to_thread(self._suite, instance, files))

    def _suite(self, instance: Instance, files: bytes) -> Suite:
        setup = setup_of(self._setups, instance)
        return suite(setup, repo=instance.repo, version=instance.version, files=files, cache=self._cache)

    async def evaluate(self, instance: Instance, patch: str) -> Evaluation:
        """Check, apply and test a patch."""
        if not patch.strip():
            return Evaluation(refused="nothing was changed")
        tests, allowed = paths(instance.test_patch), paths(instance.patch)
        if why := refusal(patch, tests=tests, allowed=allowed):
            return Evaluation(refused=why)
        verdicts = await self.verdicts(instance, patch)
        if verdicts is None:
            return Evaluation(refused="the changes cannot be applied beside the tests")
        if verdicts.stopped:
            return Evaluation(refused=verdicts.stopped)
        grade = graded(instance, verdicts)
        if grade.fixed and (why := await self._forged(instance, patch)):
            return Evaluation(refused=f"its results are forged: {why}")
        return Evaluation(grade=grade)

    async def _forged(self, instance: Instance, patch: str) -> str:
        """Run the tests as controls; return the reason if the patch forges its results, or ""."""
        workspace = await self._staged(instance, patch)
        if workspace is None:
            return ""
        try:
            files = files_of((*instance.failing, *instance.passing))
            texts = {file: await workspace.read(file) for file in files}
            controls = {file: replacement for file, text in texts.items() if text and (replacement := control(text))}
            for file, replacement in controls.items():
                await workspace.write(file, replacement.text)
            return forged((await workspace.test(list(controls))).outcomes, controls) if controls else ""
        finally:
            await workspace.close()

    async def verdicts(self, instance: Instance, patch: str) -> Verdicts | None:
        """Run the instance's tests on the repository with a patch; return None if the patch does not apply.

        Raises EnvFailed if the tests themselves cannot be staged.
        """
        workspace = await self._staged(instance, patch)
        if workspace is None:
            return None
        try:
            return await workspace.test(files_of((*instance.failing, *instance.passing)))
        finally:
            await workspace.close()

    async def _staged(self, instance: Instance, patch: str) -> Workspace | None:
        """Open a fresh workspace with the instance's tests and a patch; return None if the patch does not apply."""
        workspace = await self.workspace(instance)
        try:
            if not await workspace.apply(instance.test_patch):
                raise EnvFailed(f"the test patch of {instance.id} does not apply to {instance.commit}")
            if await workspace.apply(patch):
                return workspace
        except BaseException:
            await workspace.close()
            raise
        await workspace.close()
        return None
