"""Collect what the classifier said of the voices it had not seen, and put its adapter beside the reader.

    python scripts/feedback_classifier/collect.py OUT --model FOLDER

OUT is what `train_classifier.py` wrote: `fold-K-of-N.jsonl` of every fold and `adapter/`. Writes
data/feedback_classifier/classifier.npz, and the adapter with the identity of its base weights into the package.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from compact import compact

from openclaw_rl.judge.feedback_classifier.judge import SHIPPED

ROOT = Path(__file__).parents[2]
SIZE = 1_800_000
"""bytes of the shipped adapter: the wheel stays under 4 MB"""


def rows(folder: Path, pattern: str) -> list[dict[str, object]]:
    files = sorted(folder.glob(pattern))
    if not files:
        raise SystemExit(f"no {pattern} in {folder}: run train_classifier.py --fold every/5 --out {folder}")
    return [json.loads(text) for file in files for text in file.read_text().splitlines()]


def collect(folder: Path, pattern: str, out: Path) -> None:
    """One file of all folds' answers, in half precision."""
    found = sorted(rows(folder, pattern), key=lambda row: (str(row["voice"]), int(str(row["index"]))))
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        out,
        voice=np.array([row["voice"] for row in found]),
        index=np.array([row["index"] for row in found], np.int32),
        logprobs=np.array([row["logprobs"] for row in found], np.float16),
    )
    print(f"{out}: {len(found)} lines")


def ship(adapter: Path, model: str) -> None:
    """Ship the adapter, made small, with the name and identity of the weights it belongs to."""
    from openclaw_rl.backends.hf.finding import EMBEDDED_NAME, inspect

    kept = compact(adapter, SHIPPED, size=SIZE)
    print(f"{kept:.3f} of the adapter's squared norm is kept")
    base = f"{EMBEDDED_NAME}-{inspect(Path(model)).identity}"
    (SHIPPED / "reader.json").write_text(json.dumps({"base": base}) + "\n")
    print(f"{SHIPPED}: for {base}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="OUT", help="what train_classifier.py wrote")
    parser.add_argument("--model", help="folder of the embedded model, to ship the adapter for it")
    args = parser.parse_args()
    collect(args.folder, "fold-*-of-*[0-9].jsonl", ROOT / "data" / "feedback_classifier" / "classifier.npz")
    if args.model:
        ship(args.folder / "adapter", args.model)


if __name__ == "__main__":
    main()
