"""`python slime/train.py …` is `openclaw-rl up …`: the flags that mean something here, under their names here.

With a flag that means nothing here it starts nothing and prints the line to type instead.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

RENAMED = {
    "--hf-checkpoint": "--model-path",
    "--save": "--save-dir",
    "--n-samples-per-prompt": "--num-rollouts-per-prompt",
}
SETTINGS = {
    "--actor-num-gpus-per-node": "gpus.train",
    "--rollout-num-gpus": "gpus.rollout",
    "--rollout-temperature": "policy.sampling.temperature",
    "--rollout-max-response-len": "policy.sampling.max_tokens",
    "--kl-loss-coef": "train.loss.kl_coef",
}
SAME = [
    "--save-interval",
    "--rollout-batch-size",
    "--lr",
    "--weight-decay",
    "--adam-beta1",
    "--adam-beta2",
    "--eps-clip",
    "--eps-clip-high",
    "--custom-loss-function-path",
    "--rollout-function-path",
    "--custom-generate-function-path",
    "--custom-rm-path",
    "--use-lora",
    "--lora-rank",
    "--lora-alpha",
    "--lora-dropout",
    "--host",
    "--port",
    "--model",
    "--model-path",
    "--run-dir",
    "--set",
    "--preset",
]


def options(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each flag with its values; a word before the first flag is one without values."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            found.append((name, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            found.append((word, []))
    return found


def translate(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our words for those of slime, and the flags that have none."""
    ours, unknown = ["up"], list[str]()
    for name, values in options(words):
        if name in SETTINGS:
            ours += ["--set", f"{SETTINGS[name]}={' '.join(values)}"]
        elif name in SAME or name in RENAMED:
            ours += [RENAMED.get(name, name), *values]
        else:
            unknown.append(name)
    return ours, unknown


def main() -> None:
    """Start what was typed, or say what to type."""
    ours, unknown = translate(sys.argv[1:])
    line = shlex.join(["openclaw-rl", *ours])
    if unknown:
        print(
            f"error: {', '.join(unknown)}: no meaning here (docs/coming-from.md); type instead: {line}", file=sys.stderr
        )
        sys.exit(2)
    print(f"note: this is {line}", file=sys.stderr)
    command = str(Path(__file__).resolve().with_name("_openclaw-rl.sh"))
    os.execv(command, [command, *ours])


if __name__ == "__main__":
    main()
