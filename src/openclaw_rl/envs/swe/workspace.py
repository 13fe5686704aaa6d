"""A sandbox with a repository in it: its tests, what was changed, what the linter says, and where a text is."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from openclaw_rl.envs.sandbox import CommandResult, Sandbox, SandboxSettings, open_sandbox
from openclaw_rl.envs.swe.patches import LARGEST, changes
from openclaw_rl.envs.swe.suites import Suite
from openclaw_rl.envs.swe.verdicts import Verdicts
from openclaw_rl.envs.verifier.reports import run_sealed, source
from openclaw_rl.errors import EnvFailed

REPOSITORY: Final = "/testbed"
"""where the repository is, as in SWE-bench's images"""
RUN_TESTS: Final = "/opt/bin/run-tests"
SUITE_SECONDS: Final = 300.0
LARGEST_TEST: Final = 1 << 20
"""bytes of a file of tests"""
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
"""syntax errors, comparisons that cannot be meant, names that are nowhere defined"""


class Workspace:
    """See the module. Close it when it is no longer needed."""

    def __init__(self, sandbox: Sandbox, words: Sequence[str]) -> None:
        """``words`` are for pytest."""
        self.sandbox = sandbox
        self._words = words
        self._base = ""

    @classmethod
    async def open(cls, settings: SandboxSettings, files: bytes, suite: Suite) -> Workspace:
        """A new sandbox with the files of a repository and what its tests run with."""
        binds = tuple(dict.fromkeys((*settings.binds, *suite.binds)))
        sandbox = await open_sandbox(replace(settings, binds=binds))
        try:
            done = await sandbox.run(["sh", "-c", _PLACE, "sh", suite.home], stdin=files)
            if not done.ok:
                raise EnvFailed(f"a repository could not be unpacked: {done.output.strip() or done.stopped}")
            words = [_PYTHON, "-I", _RUNNER, json.dumps(_SETTINGS), *_WORDS, *suite.pytest]
            script = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
            await sandbox.write(RUN_TESTS, script.encode(), executable=True)
            await sandbox.write(_RUNNER, source().encode())
        except BaseException:
            await sandbox.close()
            raise
        return cls(sandbox, (*_WORDS, *suite.pytest))

    async def commit(self) -> None:
        """Make it a git repository whose only commit is what there is now."""
        done = await self.sandbox.run(["sh", "-c", _COMMIT], cwd=REPOSITORY)
        if not done.ok:
            raise EnvFailed(f"a repository could not be made: {done.output.strip() or done.stopped}")
        self._base = done.output.split()[-1]

    async def diff(self) -> str:
        """What was changed since `commit`, as a patch; cut where it is too large for any gate.

        Raises OSError where the agent left no repository to compare with. Seal the sandbox before a patch counts.
        """
        place = f"/tmp/{secrets.token_hex(8)}"
        done = await self.sandbox.run(["sh", "-c", _DIFF, "sh", place, self._base], cwd="/")
        if not done.ok:
            raise OSError(f"git cannot tell what was changed: {done.output.strip()[-200:] or done.stopped}")
        return (await self.sandbox.read(place, most=LARGEST + 1)).decode(errors="replace")

    async def apply(self, patch: str) -> bool:
        """Apply a patch; whether it could be. Its last line may lack its end, which git takes for a cut."""
        if not patch.strip():
            return True
        whole = patch if patch.endswith("\n") else f"{patch}\n"
        words = ["git", "apply", "--whitespace=nowarn", "-"]
        return (await self.sandbox.run(words, cwd=REPOSITORY, stdin=whole.encode(errors="replace"))).ok

    async def test(self, words: Sequence[str], *, seconds: float = SUITE_SECONDS) -> Verdicts:
        """Run tests: files, or names as pytest has them; with none, all."""
        report = await run_sealed(self.sandbox, _PYTHON, _SETTINGS, [*self._words, *words], seconds=seconds)
        return Verdicts(
            outcomes=report.outcomes,
            seconds=report.seconds,
            output=report.output,
            stopped=report.stopped or ("" if report.whole else "the tests were broken off"),
        )

    async def read(self, path: str) -> str | None:
        """A text of the repository; None where there is none."""
        try:
            return (await self.sandbox.read(f"{REPOSITORY}/{path}", most=LARGEST_TEST)).decode(errors="replace")
        except OSError:
            return None

    async def write(self, path: str, text: str) -> None:
        await self.sandbox.write(f"{REPOSITORY}/{path}", text.encode())

    async def lint(self, patch: str) -> str:
        """What ruff has against the Python files of a patch, in lines; "" for nothing."""
        files = [change.path for change in changes(patch) if change.path.endswith(".py")]
        if not files:
            return ""
        words = ["check", "--isolated", "--no-cache", "--quiet", "--select", _RULES, "--output-format", "concise"]
        done = await self._there(_PYTHON, "-m", "ruff", *words, *files)
        return "" if done.ok else "\n".join(line for line in done.output.splitlines() if "No such file" not in line)

    async def search(self, pattern: str, path: str) -> str:
        """The lines that hold a pattern (an extended regular expression), below a path."""
        words = ["grep", "-rnIE", "--exclude-dir=.git", "-e", pattern, "--", path or "."]
        done = await self._there(*words)
        return done.output or ("no line holds it" if done.code == 1 else f"error: {done.stopped or 'grep failed'}")

    async def _there(self, *words: str) -> CommandResult:
        """Run a program in the repository, which an agent may have removed: that is no fault of the sandbox's."""
        return await self.sandbox.run(["sh", "-c", f'cd {REPOSITORY} && exec "$@"', "sh", *words], cwd="/")

    async def close(self) -> None:
        await self.sandbox.close()
