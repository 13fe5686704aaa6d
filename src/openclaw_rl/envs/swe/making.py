"""Instances made of a package's own releases: pairs of them, and mutants that its tests notice."""

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
from openclaw_rl.envs.ladders import split_of
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

# A git repository that a maker writes: a commit for each state, with no history between them.

_IDENTITY = ("-c", "user.name=openclaw-rl", "-c", "user.email=openclaw-rl@localhost", "-c", "core.autocrlf=false")


class Mirror:
    """See the module. The same files give the same tree."""

    def __init__(self, folder: Path, name: str) -> None:
        self.place = folder / MIRRORS / name
        if not (self.place / ".git").is_dir():
            self.place.mkdir(parents=True, exist_ok=True)
            git("init", "-q", str(self.place))

    def commit(self, files: bytes, name: str) -> str:
        """A state with exactly these files (a tar), kept under a name; its commit."""
        self._clear()
        self._git("read-tree", "--empty")  # files of one length and date would pass for unchanged
        unpack(files, self.place)
        return self._kept(name)

    def changed(self, commit: str, texts: Mapping[str, bytes], name: str) -> str:
        """A state like another, with the texts of some files changed; its commit."""
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
        """How these files of one commit become those of another."""
        return self._git("diff", "--binary", "--no-renames", "--no-color", old, new, "--", *paths) if paths else ""

    def differing(self, old: str, new: str) -> list[str]:
        """The files that are not the same in two commits."""
        return self._git("diff", "--name-only", "--no-renames", "-z", old, new).strip("\0").split("\0")

    def files(self, commit: str) -> list[str]:
        """The files of a commit."""
        return self._git("ls-tree", "-r", "--name-only", "-z", commit).strip("\0").split("\0")

    def text(self, commit: str, path: str) -> bytes:
        """What a file of a commit holds."""
        return git("-C", str(self.place), "show", f"{commit}:{path}")

    def _clear(self) -> None:
        for each in self.place.iterdir():
            if each.is_dir() and each.name != ".git":
                shutil.rmtree(each)
            elif each.is_file():
                each.unlink()

    def _git(self, *words: str) -> str:
        return git("-C", str(self.place), *_IDENTITY, *words).decode(errors="replace")


# Releases of a package as the index has them: pip is asked, so that its settings and mirrors hold.

PIP_SECONDS = 300
_LIST = "Available versions:"


def versions(package: str) -> list[str]:
    """The released versions, newest first. Raises ConfigError where the index has none, or cannot be asked."""
    found = _pip("index", "versions", package)
    line = next((line for line in found.splitlines() if line.startswith(_LIST)), None)
    if line is None:
        raise ConfigError(f"pip knows no releases of {package}", remedy="look at the name, and at pip's index")
    return [version.strip() for version in line.removeprefix(_LIST).split(",")]


def source_archive(package: str, version: str, folder: Path) -> Path:
    """The source archive of a release, in ``folder``. Raises ConfigError where it has none."""
    _pip(
        *("download", "-q", "--no-deps", "--no-binary", package),
        *("-d", str(folder), f"{package}=={version}"),
    )
    found = next(iter(sorted(folder.glob("*.tar.gz"))), None)
    if found is None:
        raise ConfigError(f"{package} {version} has no source archive", remedy="take another release")
    return found


def _pip(*words: str) -> str:
    line = [sys.executable, "-m", "pip", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    if done.returncode != 0:
        raise ConfigError(f"pip {words[0]} failed: {_last(done.stderr)}", remedy="run it by hand to see why")
    return done.stdout


def _last(text: str) -> str:
    lines: Sequence[str] = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it said nothing"


FEWEST_FAILING, MOST_FAILING, FEWEST_PASSING, LONGEST_SUITE = 1, 15, 50, 20.0
CHANGELOG = re.compile(r"(?i)^(docs?/)?(change(s|log)?|history|news|releases?)(\.\w+)?$")
LONGEST_NOTES = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A state that was tried: the instance that came of it, or why none did."""

    name: str
    instance: Instance | None = None
    why: str = ""


Report = Callable[[Candidate], None]


class SweMaker:
    """Makes instances of one package in a folder."""

    def __init__(
        self, folder: Path, package: str, *, packages: Sequence[str], sandbox: SandboxSettings, cache: Path
    ) -> None:
        """``packages`` are installed beside what the package itself needs."""
        self._folder, self._package = folder, package
        self._setup = SuiteSetup(packages=tuple(packages))
        self._mirror = Mirror(folder, package)
        self._evaluator = Evaluator(folder, {package: self._setup}, sandbox=sandbox, cache=cache)

    async def pairs(self, *, count: int, report: Report) -> list[Instance]:
        """The last ``count`` steps from one release to the next, as far as they pass the filter."""
        found = await asyncio.to_thread(lambda: versions(self._package)[: count + 1])
        kept: list[Instance] = []
        for new, old in pairwise(found):
            kept += self._kept(await self._pair(old, new), report)
        return kept

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
            found = await self._listed(draft, await self._verdicts(draft, draft.patch))
        except (EnvFailed, ConfigError) as error:
            return Candidate(name=name, why=error.what)
        notes = self._notes(before, after, changed)
        return _filtered(replace(found, problem=_asked_of_pair(found, self._package, new, notes)))

    async def mutants(self, *, count: int, version: str | None, seed: int, report: Report) -> list[Instance]:
        """``count`` mutants of a release (the last one) that the filter lets pass; four times as many are tried."""
        release = version or (await asyncio.to_thread(versions, self._package))[0]
        commit = await asyncio.to_thread(self._release, release)
        whole = await self._verdicts(self._draft("whole", "mutants", version=release, commit=commit), "")
        _refuse_unfit(self._package, release, whole)
        kept: list[Instance] = []
        for number, (path, mutation) in enumerate(self._chosen(commit, count=4 * count, seed=seed)):
            tried = await self._mutant(
                f"{self._package}__{release}-{seed}-{number}", release, commit, path, mutation, whole
            )
            kept += self._kept(tried, report)
            if len(kept) == count:
                break
        return kept

    def _chosen(self, commit: str, *, count: int, seed: int) -> list[tuple[str, Mutation]]:
        """Places to mutate, of all files alike, in an order that the seed decides."""
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
            found = await self._listed(draft, whole)
        except EnvFailed as error:
            return Candidate(name=name, why=error.what)
        return _filtered(replace(found, problem=_asked_of_mutant(found, self._package)))

    async def _listed(self, draft: Instance, solved: Verdicts) -> Instance:
        """The draft with its tests: which of those that pass when it is solved fail before."""
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
        found = await self._evaluator.verdicts(instance, patch)
        if found is None:
            raise EnvFailed("its patch does not apply")
        return found

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
            rung=f"{self._package}-{kind}",
            split=split_of(name),
        )

    def _release(self, version: str) -> str:
        """The commit of a release, from its source archive."""
        with tempfile.TemporaryDirectory() as place:
            archive = source_archive(self._package, version, Path(place))
            return self._mirror.commit(unpacked(archive), f"v{version}")

    def _notes(self, old: str, new: str, changed: Sequence[str]) -> str:
        """What the changelog says of a release: the lines that came to it."""
        patch = self._mirror.diff(old, new, [path for path in changed if CHANGELOG.match(path)])
        lines = [line[1:] for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]
        return "\n".join(lines).strip()[:LONGEST_NOTES]

    def _kept(self, candidate: Candidate, report: Report) -> list[Instance]:
        """What came of it, written and told as soon as it is known: nothing, or an instance."""
        found = [] if candidate.instance is None else [candidate.instance]
        if found:
            self._write(found)
        report(candidate)
        return found

    @property
    def file(self) -> Path:
        """Where the instances are."""
        return self._folder / FILES[0]

    def _write(self, instances: Sequence[Instance]) -> None:
        """Add them to the folder's file, in place of those of the same id."""
        file = self.file
        there = read_instances(file) if file.is_file() else []
        rows = {each.id: as_row(each) for each in (*there, *instances)}
        files.write(file, json.dumps(list(rows.values()), indent=1, ensure_ascii=False) + "\n")
        setups = self._folder / ENVIRONMENTS
        told = json.loads(setups.read_text(encoding="utf-8")) if setups.is_file() else {}
        if self._setup.packages:
            told[self._package] = {"packages": list(self._setup.packages)}
            files.write(setups, json.dumps(told, indent=1) + "\n")


def code_paths(names: Sequence[str]) -> list[str]:
    """Of the files of a release its own code: that of its folders, or, where it has none, the modules beside them.

    >>> code_paths(["setup.py", "tasks.py", "pkg/a.py", "docs/conf.py"]), code_paths(["setup.py", "one.py"])
    (['pkg/a.py'], ['one.py'])
    """
    found = [name for name in source_paths(names) if name != "setup.py" and not name.startswith(("docs/", "examples/"))]
    return [name for name in found if "/" in name] or found


def _filtered(instance: Instance) -> Candidate:
    """An instance that is neither trivial nor hopeless, or why it is."""
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
        said = f"; its tests said: {whole.output.strip()[-300:]}" if not passing else ""
        raise ConfigError(
            f"{package} {version}: {passing} tests pass in {whole.seconds:.0f} s{said}",
            remedy=f"take a package with {FEWEST_PASSING} in {LONGEST_SUITE:.0f} s; --with names what its tests need",
        )


def _asked_of_pair(instance: Instance, package: str, new: str, notes: str) -> str:
    said = f"\n\nIts changelog says of {new}:\n\n{notes}" if notes else ""
    return (
        f"{package} {instance.version} does not yet do what its next release, {new}, does. Change it so that these "
        f"tests of the next release pass, which you do not have:\n{_names(instance)}{said}"
    )


def _asked_of_mutant(instance: Instance, package: str) -> str:
    return (
        f"Something is wrong in {package} {instance.version}: these tests fail.\n{_names(instance)}\n"
        "Find the cause in its code and repair it."
    )


def _names(instance: Instance) -> str:
    return "\n".join(f"- {test}" for test in instance.failing)
