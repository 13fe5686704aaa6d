"""Make a release of the version that `openclaw_rl.__version__` declares.

    python scripts/release.py [--dry-run] [--sign]        check, build, try the wheel, tag
    python scripts/release.py --tagged v0.1.0             the same for a tag that is there, as CI does

It stops at the first thing that is wrong. Nothing is pushed and nothing is uploaded: the last line says how.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SEMANTIC = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((a|b|rc)\d+)?")


class NotReady(Exception):
    """What stands in the way of a release, and what to do about it."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="all but the tag and the signatures")
    parser.add_argument("--sign", action="store_true", help="sign the tag and SHA256SUMS with your GPG key")
    parser.add_argument("--tagged", metavar="TAG", help="the tag is there already and must be this commit's")
    given = parser.parse_args(words)
    try:
        version = ready(ROOT, tagged=given.tagged)
        archives = build(ROOT / "dist")
        subprocess.run([sys.executable, ROOT / "scripts" / "check_wheel.py", archives[0]], check=True)
        if given.tagged or given.dry_run:
            print(f"==> {version} is ready; nothing was tagged")
            return 0
        publishable(version, archives, sign=given.sign)
    except (NotReady, subprocess.CalledProcessError) as error:
        print(f"==> no release: {error}", file=sys.stderr)
        return 1
    return 0


def ready(root: Path, *, tagged: str | None = None) -> str:
    """The version to release. Raises NotReady for a tree, a version or a changelog that is not fit for one."""
    version = declared(root)
    if not SEMANTIC.fullmatch(version):
        raise NotReady(f"{version!r} is no semantic version; correct __version__ in src/openclaw_rl/__init__.py")
    if changed := git(root, "status", "--porcelain"):
        raise NotReady(f"the tree is not clean; commit or remove:\n{changed}")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog(root), flags=re.MULTILINE):
        raise NotReady(f"CHANGELOG.md has no heading '## [{version}] - YYYY-MM-DD'; date what it calls unreleased")
    if tagged is None:
        if git(root, "tag", "--list", f"v{version}"):
            raise NotReady(f"v{version} is tagged already; raise __version__ in src/openclaw_rl/__init__.py")
    elif tagged != f"v{version}" or git(root, "rev-list", "-n1", tagged) != git(root, "rev-parse", "HEAD"):
        raise NotReady(f"tag {tagged} is not of this commit, which declares {version}")
    return version


def declared(root: Path) -> str:
    """`__version__`, read without importing the package."""
    for node in ast.parse((root / "src" / "openclaw_rl" / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise NotReady("src/openclaw_rl/__init__.py declares no __version__")


def changelog(root: Path) -> str:
    return (root / "CHANGELOG.md").read_text("utf-8")


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True).stdout.strip()


def build(folder: Path) -> list[Path]:
    """The wheel, made from the source archive, and that archive."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True)
    return [next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))]


def publishable(version: str, archives: list[Path], *, sign: bool) -> None:
    """Tag the commit and write the hashes of the archives to SHA256SUMS; sign both if asked."""
    sums = archives[0].parent / "SHA256SUMS"
    sums.write_text("".join(checksums(archives)))
    if sign:
        subprocess.run(["gpg", "--batch", "--yes", "--armor", "--detach-sign", sums], check=True)
    subprocess.run(
        ["git", "-C", ROOT, "tag", "--sign" if sign else "--annotate", f"v{version}", "-m", f"OpenClaw-RL {version}"],
        check=True,
    )
    print(f"==> tagged v{version}; to publish it: git push origin v{version}")


def checksums(archives: list[Path]) -> Iterator[str]:
    """Lines as `sha256sum --check` reads them."""
    for file in archives:
        yield f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
