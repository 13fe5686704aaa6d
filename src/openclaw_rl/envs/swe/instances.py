"""Reads a folder of SWE instances.

FOLDER/instances.json      SWE-bench's rows: a list, or (instances.jsonl) one per line
       repos/NAME          a git repository, or a bare mirror; "/" in its name is "__"
       archives/NAME-COMMIT.tar.gz    instead of a mirror: the files at that commit
       environments.json   optional: how the tests of a repository run
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from openclaw_rl.envs.curricula import Split, split_of
from openclaw_rl.errors import ConfigError, EnvFailed

FILES = ("instances.json", "instances.jsonl")
ENVIRONMENTS = "environments.json"


class _Row(BaseModel):
    """A row of SWE-bench, with our own ``level`` (the curriculum level) and ``split``; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str = ""
    test_patch: str = ""
    FAIL_TO_PASS: tuple[str, ...]
    PASS_TO_PASS: tuple[str, ...]
    version: str = ""
    level: str = Field(default="", validation_alias=AliasChoices("level", "rung"))
    split: Split | None = None

    @field_validator("FAIL_TO_PASS", "PASS_TO_PASS", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """SWE-bench's own files have these lists as JSON text."""
        return json.loads(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A repository at a commit, its problem, and the tests that detect a solution.

    ``patch`` is the author's solution, ``test_patch`` the change to the tests; both are unified diffs. ``failing`` are
    the tests that the solution makes pass, ``passing`` those that pass before and after.
    """

    id: str
    repo: str
    commit: str
    problem: str
    patch: str
    test_patch: str
    failing: tuple[str, ...]
    passing: tuple[str, ...]
    version: str
    level: str
    split: Split

    @property
    def name(self) -> str:
        """The repository's name in folder names."""
        return self.repo.replace("/", "__")


class SuiteSetup(BaseModel):
    """The interpreter for a repository's tests: an existing one, or one to be built with packages."""

    model_config = ConfigDict(extra="forbid")

    interpreter: Path | None = None
    """the bin/python of an environment with pytest, the packages that the tests need, and preferably ruff"""
    python: str | None = None
    """Python version, such as 3.11, which needs uv; None: the version that runs here"""
    packages: tuple[str, ...] = ()
    """packages to install besides pytest, ruff and the repository's own requirements"""
    pytest: tuple[str, ...] = ("-o", "addopts=")
    """arguments for pytest"""


def read_instances(path: Path | None) -> list[Instance]:
    """Read the instances of a folder or a file; raise ConfigError if ``path`` is None or unreadable."""
    if path is None:
        raise ConfigError(
            "env.swe_bench_path is not set",
            remedy="set SWE_BENCH_PATH to a folder of instances, or make one: openclaw-rl envs make-swe",
        )
    file = _file(path.expanduser())
    text = file.read_text(encoding="utf-8")
    try:
        rows = json.loads(text) if file.suffix == ".json" else [json.loads(line) for line in text.split("\n") if line]
        instances = [_instance(_Row.model_validate(row)) for row in rows]
    except (ValueError, ValidationError) as error:
        raise ConfigError(
            f"{file} has no valid instances: {_first(error)}", remedy="see docs/swe.md for the rows"
        ) from error
    if len({instance.id for instance in instances}) < len(instances):
        raise ConfigError(f"{file} has an instance_id twice", remedy="give each its own")
    return instances


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    first = next((file for name in FILES if (file := path / name).is_file()), None)
    if first is None:
        raise ConfigError(
            f"env.swe_bench_path: {path} contains neither {' nor '.join(FILES)}",
            remedy="name a folder with one, or make it: openclaw-rl envs make-swe --package NAME --mutants",
        )
    return first


def home_of(path: Path) -> Path:
    """Return the folder with the repositories of an instance file or folder."""
    place = path.expanduser()
    return place.parent if place.is_file() else place


def _instance(row: _Row) -> Instance:
    return Instance(
        id=row.instance_id,
        repo=row.repo,
        commit=row.base_commit,
        problem=row.problem_statement,
        patch=row.patch,
        test_patch=row.test_patch,
        failing=row.FAIL_TO_PASS,
        passing=row.PASS_TO_PASS,
        version=row.version,
        level=row.level or row.repo.replace("/", "__"),
        split=row.split or split_of(row.instance_id),
    )


def as_row(instance: Instance) -> dict[str, Any]:
    """Return the instance as a row of the file."""
    return {
        "instance_id": instance.id,
        "repo": instance.repo,
        "base_commit": instance.commit,
        "version": instance.version,
        "problem_statement": instance.problem,
        "patch": instance.patch,
        "test_patch": instance.test_patch,
        "FAIL_TO_PASS": list(instance.failing),
        "PASS_TO_PASS": list(instance.passing),
        "level": instance.level,
    }


def read_setups(folder: Path) -> Mapping[str, SuiteSetup]:
    """Read the test setups, by repository or by ``repository@version``; raise ConfigError if the file is invalid."""
    file = folder / ENVIRONMENTS
    if not file.is_file():
        return {}
    try:
        return {name: SuiteSetup.model_validate(setup) for name, setup in json.loads(file.read_text("utf-8")).items()}
    except (ValueError, ValidationError) as error:
        fields = ", ".join(SuiteSetup.model_fields)
        raise ConfigError(f"{file}: {_first(error)}", remedy=f"each repository may have: {fields}") from error


def setup_of(setups: Mapping[str, SuiteSetup], instance: Instance) -> SuiteSetup:
    """Return the setup for the instance's version, else for its repository, else the default."""
    return setups.get(f"{instance.repo}@{instance.version}") or setups.get(instance.repo) or SuiteSetup()


def _first(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def by_id(instances: Sequence[Instance]) -> dict[str, Instance]:
    """Return the instances by task name, ``LEVEL/ID``."""
    return {f"{instance.level}/{instance.id}": instance for instance in instances}


# The files of a repository at a commit, from a mirror or an archive on this machine.

MIRRORS, ARCHIVES = "repos", "archives"
GIT_SECONDS = 120
KEPT = 8
"""trees cached in memory, since the episodes of a task start together"""


def tree(folder: Path, instance: Instance) -> bytes:
    """Return the repository's files as a tar; raise EnvFailed, with the paths tried, if there are none."""
    return _tree(folder, instance.name, instance.commit)


@lru_cache(maxsize=KEPT)
def _tree(folder: Path, name: str, commit: str) -> bytes:
    for mirror in (folder / MIRRORS / name, folder / MIRRORS / f"{name}.git"):
        if mirror.is_dir():
            return git("-C", str(mirror), "archive", "--format=tar", commit)
    archive = folder / ARCHIVES / f"{name}-{commit}.tar.gz"
    if archive.is_file():
        return unpacked(archive)
    raise EnvFailed(
        f"there is neither a mirror {folder / MIRRORS / name} nor an archive {archive}",
        remedy=f"git clone --mirror ADDRESS {folder / MIRRORS / name}.git",
    )


def unpacked(archive: Path) -> bytes:
    """Repack an archive's plain files as an uncompressed tar, without their common top folder."""
    buffer = io.BytesIO()
    with tarfile.open(archive) as packed, tarfile.open(fileobj=buffer, mode="w") as plain:
        files = [member for member in packed.getmembers() if member.isfile()]
        heads = {PurePosixPath(member.name).parts[0] for member in files}
        for member in files:
            place = PurePosixPath(member.name)
            entry = tarfile.TarInfo(str(place.relative_to(place.parts[0]) if len(heads) == 1 else place))
            entry.size, entry.mode = member.size, 0o755 if member.mode & 0o100 else 0o644
            plain.addfile(entry, packed.extractfile(member))
    return buffer.getvalue()


def unpack(files: bytes, folder: Path) -> None:
    """Extract a tar's files below a folder."""
    with tarfile.open(fileobj=io.BytesIO(files)) as plain:
        plain.extractall(folder, filter="data")


def git(*words: str) -> bytes:
    """Return git's output; raise EnvFailed if it fails."""
    try:
        result = subprocess.run(["git", *words], capture_output=True, timeout=GIT_SECONDS, check=False)
    except FileNotFoundError as error:
        raise EnvFailed("the program git is not on this machine", remedy="apt-get install git") from error
    if result.returncode != 0:
        raise EnvFailed(
            f"git {words[2] if words[0] == '-C' else words[0]} failed: {result.stderr.decode(errors='replace').strip()}"
        )
    return result.stdout
