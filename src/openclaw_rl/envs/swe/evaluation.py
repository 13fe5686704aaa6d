"""Whether changes resolve an instance: the gate, a fresh copy of the repository, its tests staged there, verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.envs.sandbox import SandboxSettings
from openclaw_rl.envs.swe.instances import Instance, SuiteSetup, setup_of
from openclaw_rl.envs.swe.patches import paths, refusal
from openclaw_rl.envs.swe.repositories import tree
from openclaw_rl.envs.swe.suites import Suite, suite
from openclaw_rl.envs.swe.verdicts import Graded, Verdicts, files_of, graded
from openclaw_rl.envs.swe.workspace import Workspace
from openclaw_rl.envs.verifier.controls import control, forged
from openclaw_rl.errors import EnvFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What changes came to: the tests' verdicts, or why they were not run."""

    grade: Graded | None = None
    refused: str = ""

    def score(self, *, partial: bool) -> float:
        """From 0 to 1."""
        return self.grade.score(partial=partial) if self.grade is not None else 0.0

    @property
    def told(self) -> str:
        """In one line."""
        if self.grade is None:
            return f"[not resolved: {self.refused}]"
        grade = self.grade
        head = "resolved" if grade.resolved else "not resolved"
        fixed = f"{grade.fixed} of {grade.failing} failing tests pass now"
        return f"[{head}: {fixed}, {grade.kept} of {grade.passing} others still pass]"


class Evaluator:
    """Opens an instance's repository, and tells what changes of it are worth."""

    def __init__(
        self, folder: Path, setups: Mapping[str, SuiteSetup], *, sandbox: SandboxSettings, cache: Path
    ) -> None:
        """``folder`` holds the repositories, ``cache`` the virtual environments of their tests."""
        self._folder, self._setups, self._sandbox, self._cache = folder, setups, sandbox, cache

    async def workspace(self, instance: Instance) -> Workspace:
        """A sandbox with the repository as the instance finds it."""
        files = await asyncio.to_thread(tree, self._folder, instance)
        return await Workspace.open(self._sandbox, files, await asyncio.to_thread(self._suite, instance, files))

    def _suite(self, instance: Instance, files: bytes) -> Suite:
        setup = setup_of(self._setups, instance)
        return suite(setup, repo=instance.repo, version=instance.version, files=files, cache=self._cache)

    async def evaluate(self, instance: Instance, patch: str) -> Evaluation:
        """What a patch of the repository comes to."""
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
        """Why the results of a patch are forged, from a run of the tests as controls; "" where they are not."""
        workspace = await self._staged(instance, patch)
        if workspace is None:
            return ""
        try:
            files = files_of((*instance.failing, *instance.passing))
            texts = {file: await workspace.read(file) for file in files}
            controls = {file: made for file, text in texts.items() if text and (made := control(text))}
            for file, made in controls.items():
                await workspace.write(file, made.text)
            return forged((await workspace.test(list(controls))).outcomes, controls) if controls else ""
        finally:
            await workspace.close()

    async def verdicts(self, instance: Instance, patch: str) -> Verdicts | None:
        """What the instance's tests say of the repository with a patch; None where it does not apply.

        Raises EnvFailed where not even the tests can be staged.
        """
        workspace = await self._staged(instance, patch)
        if workspace is None:
            return None
        try:
            return await workspace.test(files_of((*instance.failing, *instance.passing)))
        finally:
            await workspace.close()

    async def _staged(self, instance: Instance, patch: str) -> Workspace | None:
        """A fresh workspace with the instance's tests and a patch; None where the patch does not apply."""
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
