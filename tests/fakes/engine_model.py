"""The model of the fake engines, which says what it was told, and what such an engine holds while it runs."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from openclaw_rl.backends.fake import ADAPTER, logprob, read_rules

SPECIAL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <tool_call> #}"
)
_USER, _ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
CONTEXT = 4096
EngineKind = Literal["vllm", "sglang"]


def write_engine_model(folder: Path) -> Path:
    """The files of a model that `fake_engine` serves: a tokenizer of bytes, a chat template, weights of one number."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: at for at, name in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIAL[1], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT, "eos_token_id": 1}))
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    return folder


class FakeEngine:
    """The state of a fake engine: what it serves and holds, and how it fails.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     engine = FakeEngine("vllm", write_engine_model(Path(place)))
    >>> prompt = engine.tokenizer.encode("<|im_start|>user\\ntea<|im_end|>\\n<|im_start|>assistant\\n").ids
    >>> engine.tokenizer.decode(engine.reply(prompt, None)[0])
    'You said: tea'
    """

    def __init__(self, kind: EngineKind, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.kind, self.url = kind, ""
        self.version = "0.32.0" if kind == "vllm" else "0.5.23"
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.adapters: dict[str, str] = {}
        self.weights = ""
        """the folder that the model's own weights were read from last; empty: those that it was started with"""
        self.asleep = False
        self.can_sleep = True
        self.max_rank = 16
        self.reload_seconds = 0.0
        self.requests: list[dict[str, Any]] = []
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.reloads: list[str] = []
        self.faults: list[str] = []
        """what no engine forgives: weights that change under a request, a request while it sleeps"""
        self.running = 0
        self.cancelled = 0
        self.alive = True
        self.failures = 0
        """requests that are answered with 500 from now on"""
        self.die_after: int | None = None
        """tokens of the next reply after which the engine dies"""
        self.pause = 0.0
        """seconds between tokens"""
        self.step = 0.0
        """seconds of a step: after a reply's first token, which leaves at once, those of all streams leave together, at
        whole multiples of it by the monotonic clock"""

    def until_due(self, at: int) -> float:
        """Seconds until token ``at`` of a reply may leave."""
        if not self.step:
            return self.pause
        return self.step - time.monotonic() % self.step if at else 0.0

    def die(self) -> None:
        """End every stream and answer nothing more."""
        self.alive = False
        self.adapters.clear()
        self.weights, self.asleep = "", False

    def reload(self, path: str) -> None:
        """Take the weights of another folder."""
        if self.running:
            self.faults.append(f"weights changed under {self.running} requests")
        self.weights = path if (Path(path) / ADAPTER).exists() else ""
        self.reloads.append(path)

    def sleep(self) -> None:
        """Give the GPU's memory away."""
        if self.running:
            self.faults.append(f"sent to sleep under {self.running} requests")
        self.asleep = True

    def failing(self) -> bool:
        """Whether the next request is to fail."""
        self.failures -= 1
        return self.failures >= 0

    def revive(self) -> None:
        """Answer again, without the adapters from before."""
        self.alive = True

    def reply(self, ids: Sequence[int], adapter: str | None, schema: str | None = None) -> tuple[list[int], int]:
        """The tokens that follow, the end of the turn among them, and how many of the reply came before them.

        Held to a JSON schema it says the simplest value that fits.
        """
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        asked, ended, written = text.rpartition(_USER)[2].partition(_ASSISTANT)
        asked = asked if ended else ""
        learned = self.adapters[adapter] if adapter else self.weights
        rules = read_rules(learned) if learned else ()
        said = f"You said: {asked}" + "".join(f" [learned: {rule}]" for rule in rules)
        said = said if schema is None else json.dumps(_simplest(json.loads(schema)))
        whole = [*self.tokenizer.encode(said, add_special_tokens=False).ids, 1]
        done = len(self.tokenizer.encode(written, add_special_tokens=False).ids)
        return (whole[done:] if said.startswith(written) else whole), done

    def top(self, token: int, position: int, count: int) -> list[tuple[int, float]]:
        """A token's log-prob at a position, then those of others."""
        others = [((token + step) % 256 + 2, logprob(token + step, position) - 3.0) for step in range(1, count)]
        return [(token, logprob(token, position)), *others]


def _simplest(schema: dict[str, Any]) -> Any:
    """A value that fits a plain schema."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        parts = schema.get("properties", {})
        return {name: _simplest(parts.get(name, {})) for name in schema.get("required", ())}
    return {"array": [], "string": "", "integer": 0, "number": 0, "boolean": True}.get(schema.get("type", ""))
