"""Export of a version's weights for other programs: a PEFT folder, GGUF files, a folder for Ollama."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file

from openclaw_rl import files
from openclaw_rl.backends.hf.adapters import ADAPTER, adapter_pairs, adapter_settings, version_model
from openclaw_rl.backends.hf.embedded import embedded_file
from openclaw_rl.backends.hf.finding import EMBEDDED, ProgressCallback, find
from openclaw_rl.backends.hf.gguf_files import write_adapter, write_model
from openclaw_rl.backends.hf.models import LoadedModel, load
from openclaw_rl.errors import ModelRefused

GGUF_FILE: Final = "model.gguf"


def export_weights(
    form: str,
    target: Path,
    *,
    model: str,
    version: str | None,
    cache_dir: Path,
    sampling: Mapping[str, float],
    progress: ProgressCallback,
) -> None:
    """Write a version of ``model`` to ``target`` as peft, gguf, merged or ollama.

    ``version`` is its weights' folder, None for the base. ``sampling`` is written into a Modelfile.
    """
    if form in ("peft", "gguf"):
        folder = _adapter(version)
        if form == "peft":
            _write_peft(folder, target, model)
        else:
            _whole_file(target, lambda draft: write_adapter(folder, _config(model, cache_dir, progress), draft))
        return
    loaded = load(model, cache_dir=cache_dir, device="cpu", dtype="auto", progress=progress)
    weights = loaded.model if version is None else version_model(loaded.model, version)
    progress("writing GGUF")

    def write(place: Path) -> None:
        folder = find(model, cache_dir=cache_dir, progress=progress)[0]
        source, template = _source(model, cache_dir, progress), loaded.tokenizer.chat_template
        write_model(weights, folder, place, name=loaded.name, template=template, source=source)

    if form == "merged":
        _whole_file(target, write)
        return
    with files.directory(target) as draft:
        write(draft / GGUF_FILE)
        (draft / "Modelfile").write_text(modelfile(loaded, sampling), encoding="utf-8")


def _whole_file(target: Path, write: Callable[[Path], None]) -> None:
    """Write a file atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        write(draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _adapter(version: str | None) -> Path:
    if version is None or not (Path(version) / "adapter_config.json").is_file():
        what = "the base model" if version is None else "a whole model"
        raise ModelRefused(f"this version is {what} and no adapter", remedy="export it with --format merged")
    return Path(version)


def _write_peft(folder: Path, target: Path, model: str) -> None:
    """Write plain tensors and settings; a version's other files are for training alone."""
    settings = {**adapter_settings(folder), "base_model_name_or_path": model}
    tensors = {
        f"base_model.model.{module}.lora_{side}.weight": tensor.contiguous()
        for module, pair in adapter_pairs(folder).items()
        for side, tensor in zip("AB", pair, strict=True)
    }
    with files.directory(target) as draft:
        save_file(tensors, draft / ADAPTER, metadata={"format": "pt"})
        (draft / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _config(model: str, cache_dir: Path, progress: ProgressCallback) -> Any:
    from transformers import AutoConfig

    folder, _ = find(model, cache_dir=cache_dir, progress=progress)
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _source(model: str, cache_dir: Path, progress: ProgressCallback) -> Path | None:
    """Return the GGUF file that a model was made from."""
    if model == EMBEDDED:
        return embedded_file(cache_dir=cache_dir, progress=progress)
    path = Path(model).expanduser()
    return path if path.is_file() else None


# --- Modelfile

_CHATML: Final = """{{- if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{- range .Messages }}{{- if ne .Role "system" }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}{{- end }}<|im_start|>assistant
"""
_TALK: Final = (("user", "one"), ("assistant", "two"), ("user", "three"))


def modelfile(loaded: LoadedModel, sampling: Mapping[str, float]) -> str:
    """Return the Modelfile for ``ollama create``.

    A template is written if the model's own is ChatML; otherwise Ollama chooses it, as it recognises many by their
    text.
    """
    lines = [f"FROM ./{GGUF_FILE}"]
    render = loaded.tokenizer.apply_chat_template
    messages = [{"role": role, "content": text} for role, text in _TALK]
    system = {"role": "system", "content": "zero"}
    rendered = render([system, *messages], tokenize=False, add_generation_prompt=True)
    bare = render(messages, tokenize=False, add_generation_prompt=True)
    if rendered == chatml([("system", "zero"), *_TALK]) and bare.endswith(chatml(_TALK)):
        lines.append(f'TEMPLATE """{_CHATML}"""')
        lines.append('PARAMETER stop "<|im_end|>"')
        before = bare.removesuffix(chatml(_TALK)).removeprefix("<|im_start|>system\n").removesuffix("<|im_end|>\n")
        if before and '"""' not in before:
            lines.append(f'SYSTEM """{before}"""')
    lines += [f"PARAMETER {name} {value:g}" for name, value in sampling.items()]
    return "\n".join(lines) + "\n"


def chatml(talk: Sequence[tuple[str, str]]) -> str:
    """Format a conversation in ChatML, up to the requested reply."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in talk) + "<|im_start|>assistant\n"
