"""Makes instances from a package's own releases: pairs of releases, and mutants that its tests detect."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from openclaw_rl import files
from openclaw_rl.envs.curricula import split_of
from openclaw_rl.envs.sandbox import SandboxSettings
from openclaw_rl.envs.swe.evaluation import Evaluator
from openclaw_rl.envs.swe.instances import (
    ENVIRONMENTS,
    FILES,
    MIRRORS,
    Instance,
    SuiteSetup,
    as_row,
    git,
    read_instances,
    unpack,
    unpacked,
)
from openclaw_rl.envs.swe.mutations import Mutation, is_test, mutations, source_paths
from openclaw_rl.envs.swe.suites import PASSED, Verdicts
from openclaw_rl.errors import ConfigError, EnvFailed

# A generated git repository: one commit per state, with no history between them.

_IDENTITY = ("-c", "user.name=openclaw-rl", "-c", "user.email=openclaw-rl@localhost", "-c", "core.autocrlf=false")


class Mirror:
    """See the comment above. Equal files give an equal tree."""

    def __init__(self, folder: Path, name: str) -> None:
        self.place = folder / MIRRORS / name
        if not (self.place / ".git").is_dir():
            self.place.mkdir(parents=True, exist_ok=True)
            git("init", "-q", str(self.place))

    def commit(self, files: bytes, name: str) -> str:
        """Commit exactly these files (a tar) under a branch name; return the commit."""
        self._clear()
        self._git("read-tree", "--empty")  # else files of equal length and date would count as unchanged
        unpack(files, self.place)
        return self._kept(name)

    def changed(self, commit: str, texts: Mapping[str, bytes], name: str) -> str:
        """Commit a copy of another state with some files' texts replaced; return the commit."""
        self._git("read-tree", "-u", "--reset", commit)
        for path, text in texts.items():
            (self.place / path).write_bytes(text)
        return self._kept(name)

    def _kept(self, name: str) -> str:
        self._git("add", "-A", "-f")
        tree = self._git("write-tree").strip()
        commit = self._git("commit-tree", tree, "-m", name).strip()
        self._git("update-ref", f"refs/heads/{name}", commit)
        return commit

    def diff(self, old: str, new: str, paths: Sequence[str]) -> str:
        """Return the diff of these files between two commits."""
        return self._git("diff", "--binary", "--no-renames", "--no-color", old, new, "--", *paths) if paths else ""

    def differing(self, old: str, new: str) -> list[str]:
        """Return the files that differ between two commits."""
        return self._git("diff", "--name-only", "--no-renames", "-z", old, new).strip("\0").split("\0")

    def files(self, commit: str) -> list[str]:
        """Return the files of a commit."""
        return self._git("ls-tree", "-r", "--name-only", "-z", commit).strip("\0").split("\0")

    def text(self, commit: str, path: str) -> bytes:
        """Return the content of a file at a commit."""
        return git("-C", str(self.place), "show", f"{commit}:{path}")

    def _clear(self) -> None:
        for path in self.place.iterdir():
            if path.is_dir() and path.name != ".git":
                shutil.rmtree(path)
            elif path.is_file():
                path.unlink()

    def _git(self, *words: str) -> str:
        return git("-C", str(self.place), *_IDENTITY, *words).decode(errors="replace")


# A package's releases on the index, requested through pip, so that its settings and mirrors apply.

PIP_SECONDS = 300
_LIST = "Available versions:"


def versions(package: str) -> list[str]:
    """Return the released versions, newest first; raise ConfigError if the index has none or is unreachable."""
    output = _pip("index", "versions", package)
    line = next((line for line in output.splitlines() if line.startswith(_LIST)), None)
    if line is None:
        raise ConfigError(f"pip found no releases of {package}", remedy="check the name, and pip's index")
    return [version.strip() for version in line.removeprefix(_LIST).split(",")]


def source_archive(package: str, version: str, folder: Path) -> Path:
    """Download a release's source archive into ``folder``; raise ConfigError if it has none."""
    _pip(
        *("download", "-q", "--no-deps", "--no-binary", package),
        *("-d", str(folder), f"{package}=={version}"),
    )
    archive = next(iter(sorted(folder.glob("*.tar.gz"))), None)
    if archive is None:
        raise ConfigError(f"{package} {version} has no source archive", remedy="take another release")
    return archive


def _pip(*words: str) -> str:
    line = [sys.executable, "-m", "pip", *words]
    result = subprocess.run(line, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    if result.returncode != 0:
        raise ConfigError(f"pip {words[0]} failed: {_last(result.stderr)}", remedy="run it by hand to see why")
    return result.stdout


def _last(text: str) -> str:
    lines: Sequence[str] = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it said nothing"


FEWEST_FAILING, MOST_FAILING, FEWEST_PASSING, LONGEST_SUITE = 1, 15, 50, 20.0
CHANGELOG = re.compile(r"(?i)^(docs?/)?(change(s|log)?|history|news|releases?)(\.\w+)?$")
LONGEST_NOTES = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A candidate state with its instance, or with the reason for its rejection."""

    name: str
    instance: Instance | None = None
    why: str = ""


Report = Callable[[Candidate], None]


class SweMaker:
    """Makes instances from one package in a folder."""

    def __init__(
        self, folder: Path, package: str, *, packages: Sequence[str], sandbox: SandboxSettings, cache: Path
    ) -> None:
        """``packages`` are installed besides the package's own requirements."""
        self._folder, self._package = folder, package
        self._setup = SuiteSetup(packages=tuple(packages))
        self._mirror = Mirror(folder, package)
        self._evaluator = Evaluator(folder, {package: self._setup}, sandbox=sandbox, cache=cache)

    async def pairs(self, *, count: int, report: Report) -> list[Instance]:
        """Make instances from the last ``count`` steps between releases; return those that pass the filter."""
        releases = await asyncio.to_thread(lambda: versions(self._package)[: count + 1])
        instances: list[Instance] = []
        for new, old in pairwise(releases):
            instances += self._kept(await self._pair(old, new), report)
        return instances

    async def _pair(self, old: str, new: str) -> Candidate:
        name = f"{self._package}__{old}-{new}"
        try:
            before, after = [await asyncio.to_thread(self._release, version) for version in (old, new)]
            draft = self._draft(name, "pairs", version=old, commit=before)
            changed = self._mirror.differing(before, after)
            tests = [path for path in changed if is_test(path)]
            draft = replace(
                draft,
                test_patch=self._mirror.diff(before, after, tests),
                patch=self._mirror.diff(before, after, source_paths(changed)),
            )
            instance = await self._listed(draft, await self._verdicts(draft, draft.patch))
        except (EnvFailed, ConfigError) as error:
            return Candidate(name=name, why=error.what)
        notes = self._notes(before, after, changed)
        return _filtered(replace(instance, problem=_asked_of_pair(instance, self._package, new, notes)))

    async def mutants(self, *, count: int, version: str | None, seed: int, report: Report) -> list[Instance]:
        """Make ``count`` mutants of a release (default: the latest) that pass the filter, from four times as many
        tries.
        """
        release = version or (await asyncio.to_thread(versions, self._package))[0]
        commit = await asyncio.to_thread(self._release, release)
        verdicts = await self._verdicts(self._draft("whole", "mutants", version=release, commit=commit), "")
        _refuse_unfit(self._package, release, verdicts)
        instances: list[Instance] = []
        for number, (path, mutation) in enumerate(self._chosen(commit, count=4 * count, seed=seed)):
            tried = await self._mutant(
                f"{self._package}__{release}-{seed}-{number}", release, commit, path, mutation, verdicts
            )
            instances += self._kept(tried, report)
            if len(instances) == count:
                break
        return instances

    def _chosen(self, commit: str, *, count: int, seed: int) -> list[tuple[str, Mutation]]:
        """Choose places to mutate, uniformly over all files, in an order that the seed decides."""
        everywhere = [
            (path, mutation)
            for path in code_paths(self._mirror.files(commit))
            for mutation in mutations(self._mirror.text(commit, path))
        ]
        random.Random(f"{self._package}/{seed}").shuffle(everywhere)
        return everywhere[:count]

    async def _mutant(
        self, name: str, version: str, commit: str, path: str, mutation: Mutation, whole: Verdicts
    ) -> Candidate:
        text = mutation.apply(self._mirror.text(commit, path))
        mutated = self._mirror.changed(commit, {path: text}, name)
        draft = self._draft(name, "mutants", version=version, commit=mutated)
        draft = replace(draft, patch=self._mirror.diff(mutated, commit, [path]))
        try:
            instance = await self._listed(draft, whole)
        except EnvFailed as error:
            return Candidate(name=name, why=error.what)
        return _filtered(replace(instance, problem=_asked_of_mutant(instance, self._package)))

    async def _listed(self, draft: Instance, solved: Verdicts) -> Instance:
        """Add the tests to the draft: those that pass with the solution, split by their outcome without it."""
        before = await self._verdicts(draft, "")
        passing = solved.named(PASSED)
        if solved.seconds > LONGEST_SUITE:
            raise EnvFailed(f"its tests take {solved.seconds:.0f} s, more than {LONGEST_SUITE:.0f}")
        return replace(
            draft,
            failing=tuple(test for test in passing if not before.passes(test)),
            passing=tuple(test for test in passing if before.passes(test)),
        )

    async def _verdicts(self, instance: Instance, patch: str) -> Verdicts:
        verdicts = await self._evaluator.verdicts(instance, patch)
        if verdicts is None:
            raise EnvFailed("its patch does not apply")
        return verdicts

    def _draft(self, name: str, kind: str, *, version: str, commit: str) -> Instance:
        return Instance(
            id=name,
            repo=self._package,
            commit=commit,
            problem="",
            patch="",
            test_patch="",
            failing=(),
            passing=(),
            version=version,
            level=f"{self._package}-{kind}",
            split=split_of(name),
        )

    def _release(self, version: str) -> str:
        """Commit a release from its source archive; return the commit."""
        with tempfile.TemporaryDirectory() as place:
            archive = source_archive(self._package, version, Path(place))
            return self._mirror.commit(unpacked(archive), f"v{version}")

    def _notes(self, old: str, new: str, changed: Sequence[str]) -> str:
        """Return the lines that a release added to the changelog."""
        patch = self._mirror.diff(old, new, [path for path in changed if CHANGELOG.match(path)])
        lines = [line[1:] for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]
        return "\n".join(lines).strip()[:LONGEST_NOTES]

    def _kept(self, candidate: Candidate, report: Report) -> list[Instance]:
        """Write a candidate's instance at once and report the candidate; return the instance as a list, or []."""
        instances = [] if candidate.instance is None else [candidate.instance]
        if instances:
            self._write(instances)
        report(candidate)
        return instances

    @property
    def file(self) -> Path:
        """The file with the instances."""
        return self._folder / FILES[0]

    def _write(self, instances: Sequence[Instance]) -> None:
        """Add instances to the folder's file; they replace those with the same id."""
        file = self.file
        existing = read_instances(file) if file.is_file() else []
        rows = {instance.id: as_row(instance) for instance in (*existing, *instances)}
        files.write(file, json.dumps(list(rows.values()), indent=1, ensure_ascii=False) + "\n")
        setups = self._folder / ENVIRONMENTS
        environments = json.loads(setups.read_text(encoding="utf-8")) if setups.is_file() else {}
        if self._setup.packages:
            environments[self._package] = {"packages": list(self._setup.packages)}
            files.write(setups, json.dumps(environments, indent=1) + "\n")


def code_paths(names: Sequence[str]) -> list[str]:
    """Return a release's own code files: those in folders, or, if there are none, the top-level modules.

    >>> code_paths(["setup.py", "tasks.py", "pkg/a.py", "docs/conf.py"]), code_paths(["setup.py", "one.py"])
    (['pkg/a.py'], ['one.py'])
    """
    code = [name for name in source_paths(names) if name != "setup.py" and not name.startswith(("docs/", "examples/"))]
    return [name for name in code if "/" in name] or code


def _filtered(instance: Instance) -> Candidate:
    """Return the instance if it is neither trivial nor hopeless, else the reason."""
    failing, passing = len(instance.failing), len(instance.passing)
    if not FEWEST_FAILING <= failing <= MOST_FAILING:
        why = f"{failing} tests fail, not {FEWEST_FAILING} to {MOST_FAILING}"
    elif passing < FEWEST_PASSING:
        why = f"{passing} tests pass, fewer than {FEWEST_PASSING}"
    else:
        return Candidate(name=instance.id, instance=instance)
    return Candidate(name=instance.id, why=why)


def _refuse_unfit(package: str, version: str, whole: Verdicts) -> None:
    passing = len(whole.named(PASSED))
    if passing < FEWEST_PASSING or whole.seconds > LONGEST_SUITE:
        output = f"; its tests said: {whole.output.strip()[-300:]}" if not passing else ""
        raise ConfigError(
            f"{package} {version}: {passing} tests pass in {whole.seconds:.0f} s{output}",
            remedy=f"take a package with {FEWEST_PASSING} in {LONGEST_SUITE:.0f} s; --with names what its tests need",
        )


def _asked_of_pair(instance: Instance, package: str, new: str, notes: str) -> str:
    changelog = f"\n\nIts changelog says of {new}:\n\n{notes}" if notes else ""
    return (
        f"{package} {instance.version} does not yet do what its next release, {new}, does. Change it so that these "
        f"tests of the next release pass, which you do not have:\n{_names(instance)}{changelog}"
    )


def _asked_of_mutant(instance: Instance, package: str) -> str:
    return (
        f"Something is wrong in {package} {instance.version}: these tests fail.\n{_names(instance)}\n"
        "Find the cause in its code and repair it."
    )


def _names(instance: Instance) -> str:
    return "\n".join(f"- {test}" for test in instance.failing)
