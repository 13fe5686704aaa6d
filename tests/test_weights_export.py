"""Learned weights as PEFT, GGUF and a Modelfile, read back and run by other programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
import numpy as np  # noqa: E402 (torch may be missing)
from click.testing import CliRunner, Result  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from test_local_models import byte_tokenizer  # noqa: E402
from tiny import random_model  # noqa: E402

from openclaw_rl.backends.hf.adapters import version_model  # noqa: E402
from openclaw_rl.backends.hf.finding import EMBEDDED  # noqa: E402
from openclaw_rl.backends.hf.gguf_files import split_of  # noqa: E402
from openclaw_rl.backends.hf.models import load  # noqa: E402
from openclaw_rl.backends.hf.weights_export import export_weights  # noqa: E402
from openclaw_rl.cli import cli  # noqa: E402
from openclaw_rl.config import sources  # noqa: E402
from openclaw_rl.errors import ConfigError, ModelRefused, NotInLedger  # noqa: E402
from openclaw_rl.store import TrainLedger  # noqa: E402
from openclaw_rl.types import Version  # noqa: E402

SHAPES = ("llama", "qwen2", "qwen3")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "eos_token_id": 0,
    "initializer_range": 0.2,
}
Export = Callable[..., Path]
Reply = tuple[list[int], list[float]]
"""tokens and their log-probs"""


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A small random model with biases that count, as a user would have it on disk."""
    model = random_model(getattr(request, "param", "llama"), **SIZES)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.5)
    model.save_pretrained(tmp_path / "base")
    save_tokenizer(tmp_path / "base")
    return tmp_path / "base"


def save_tokenizer(folder: Path, template: str = CHATML) -> None:
    """One token per byte, and one of two bytes: llama.cpp wants something to merge."""
    byte_tokenizer(template).save_pretrained(folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    described["model"]["vocab"]["ab"] = 259
    described["model"]["merges"] = [["a", "b"]]
    (folder / "tokenizer.json").write_text(json.dumps(described))


def adapter(folder: Path, model: Any, *, alpha: float = 8, strength: float = 0.3, **settings: Any) -> Path:
    """A LoRA adapter of rank 4 for every linear layer of the blocks."""
    torch.manual_seed(1)
    folder.mkdir()
    tensors = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and ".layers." in name:
            out, into = layer.weight.shape
            key = f"base_model.model.{name}.lora_"
            tensors[f"{key}A.weight"] = torch.randn(4, into) * strength
            tensors[f"{key}B.weight"] = torch.randn(out, 4) * strength
    save_file(tensors, folder / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": 4, "lora_alpha": alpha, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps({**told, **settings}))
    return folder


def loaded(model: str | Path) -> Any:
    return load(str(model), cache_dir=sources.cache_dir(), device="cpu", dtype="float32", progress=lambda _: None)


@pytest.fixture
def export(tmp_path: Path) -> Export:
    def write(form: str, model: str | Path, version: Path | None, to: str = "out") -> Path:
        export_weights(
            form,
            tmp_path / to,
            model=str(model),
            version=None if version is None else str(version),
            cache_dir=sources.cache_dir(),
            sampling={"temperature": 0.7, "top_p": 0.9},
            progress=lambda _: None,
        )
        return tmp_path / to

    return write


def read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata and the tensors of a GGUF file."""
    reader = gguf.GGUFReader(file)
    return (
        {name: field.contents() for name, field in reader.fields.items()},
        {tensor.name: np.array(tensor.data) for tensor in reader.tensors},
    )


# --- what is in the files


def test_a_peft_folder_is_the_same_model_to_peft(folder: Path, tmp_path: Path, export: Export) -> None:
    from peft import PeftModel

    base = loaded(folder).model
    version = adapter(tmp_path / "version", base)
    made = export("peft", folder, version)
    assert sorted(file.name for file in made.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert json.loads((made / "adapter_config.json").read_text())["base_model_name_or_path"] == str(folder)
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        ours = version_model(base, str(version))(ids).logits
        theirs = PeftModel.from_pretrained(loaded(folder).model, made)(ids).logits
    assert torch.allclose(ours, theirs, atol=1e-3)


def test_a_small_adapter_in_int8_is_exported_in_plain_numbers(folder: Path, tmp_path: Path, export: Export) -> None:
    version = adapter(tmp_path / "version", loaded(folder).model)
    tensors, small = load_file(version / "adapter_model.safetensors"), {}
    for key, tensor in tensors.items():
        scale = tensor.abs().amax() / 127
        small[key] = (tensor / scale).round().to(torch.int8)
        small[key.removesuffix("weight") + "scale"] = scale[None]
    save_file(small, version / "adapter_model.safetensors")
    found = load_file(export("peft", folder, version) / "adapter_model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.allclose(found[key], tensors[key], atol=0.02) for key in tensors)


@pytest.mark.parametrize("more", [{}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 3}}], ids=str)
def test_a_gguf_adapter_scales_as_ours_does(folder: Path, tmp_path: Path, export: Export, more: dict[str, Any]) -> None:
    base = loaded(folder).model
    version = adapter(tmp_path / "version", base, **more)
    told, tensors = read(export("gguf", folder, version))
    assert (told["general.type"], told["adapter.type"], told["general.architecture"]) == ("adapter", "lora", "llama")
    merged = version_model(base, str(version))
    for ours, theirs in (("self_attn.q_proj", "attn_q"), ("mlp.down_proj", "ffn_down")):
        a, b = tensors[f"blk.1.{theirs}.weight.lora_a"], tensors[f"blk.1.{theirs}.weight.lora_b"]
        delta = b @ a * told["adapter.lora.alpha"] / 4
        layer = f"model.layers.1.{ours}"
        wanted = (merged.get_submodule(layer).weight - base.get_submodule(layer).weight).detach()
        if theirs == "attn_q":
            wanted = wanted.reshape(4, 2, 8, 64).swapaxes(1, 2).reshape(64, 64)
        assert np.allclose(delta, wanted.numpy(), atol=1e-4)


def test_a_merged_model_holds_every_weight_once(folder: Path, tmp_path: Path, export: Export) -> None:
    base = loaded(folder).model
    version = adapter(tmp_path / "version", base)
    told, tensors = read(export("merged", folder, version))
    merged = version_model(base, str(version)).state_dict()
    assert len(tensors) == len(merged)
    wanted = merged["model.layers.0.mlp.up_proj.weight"]
    assert np.allclose(tensors["blk.0.ffn_up.weight"], wanted.numpy(), atol=0.01)
    assert tensors["blk.0.ffn_up.weight"].dtype == np.float16
    assert tensors["output_norm.weight"].dtype == np.float32
    assert (told["tokenizer.ggml.pre"], told["tokenizer.chat_template"]) == ("gpt-2", CHATML)
    assert told["llama.attention.head_count_kv"] == 2


def test_a_folder_for_ollama_holds_the_model_and_a_modelfile(folder: Path, export: Export) -> None:
    made = export("ollama", folder, None)
    assert sorted(file.name for file in made.iterdir()) == ["Modelfile", "model.gguf"]
    text = (made / "Modelfile").read_text()
    assert text.startswith('FROM ./model.gguf\nTEMPLATE """{{- if .System }}<|im_start|>system\n')
    assert text.endswith('PARAMETER stop "<|im_end|>"\nPARAMETER temperature 0.7\nPARAMETER top_p 0.9\n')
    assert "SYSTEM" not in text


def test_another_template_is_left_to_ollama(folder: Path, export: Export) -> None:
    save_tokenizer(folder, "{% for m in messages %}{{ m.content }}{% endfor %}")
    text = (export("ollama", folder, None) / "Modelfile").read_text()
    assert text == "FROM ./model.gguf\nPARAMETER temperature 0.7\nPARAMETER top_p 0.9\n"


# --- what is refused


@pytest.mark.parametrize("form", ["peft", "gguf"])
def test_a_version_without_an_adapter_is_refused(folder: Path, tmp_path: Path, export: Export, form: str) -> None:
    for version, what in ((None, "the base model"), (folder, "a whole model")):
        with pytest.raises(ModelRefused, match=f"is {what} and no adapter; export it with --format merged"):
            export(form, folder, version)
    assert not (tmp_path / "out").exists()


def test_an_architecture_without_names_is_refused_and_leaves_nothing(tmp_path: Path, export: Export) -> None:
    random_model("granite", **SIZES).save_pretrained(tmp_path / "odd")
    save_tokenizer(tmp_path / "odd")
    for form in ("merged", "ollama"):
        with pytest.raises(ModelRefused, match="'granite' cannot be written as GGUF.*--format peft"):
            export(form, tmp_path / "odd", None)
    assert [file.name for file in tmp_path.iterdir()] == ["odd"]


def test_a_tokenizer_that_splits_in_another_way_is_refused(folder: Path, export: Export) -> None:
    described = json.loads((folder / "tokenizer.json").read_text())
    described["pre_tokenizer"] = {"type": "Whitespace"}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ModelRefused, match="tokenizer is not known"):
        export("merged", folder, None)


def test_ways_of_splitting_have_llama_cpps_names() -> None:
    level, bare = {"type": "ByteLevel", "use_regex": True}, {"type": "ByteLevel", "use_regex": False}
    digits = {"type": "Digits", "individual_digits": True}
    assert split_of({"type": "Sequence", "pretokenizers": [digits, level]}) == "smollm"
    assert split_of({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "x"}}, bare]}) is None
    assert (split_of(level), split_of(bare), split_of(None)) == ("gpt-2", None, None)


# --- llama.cpp itself


@pytest.fixture
def llama_cpp() -> Callable[..., Reply]:
    """Run llama.cpp's own server in this process: the greedy reply to a prompt of tokens."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp is not installed: pip install xllamacpp")

    def greedy(
        model: Path, prompt: list[int], *, count: int, lora: Path | None = None, banned: Sequence[int] = ()
    ) -> Reply:
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # more would spin for each other
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        if lora is not None:
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(lora), 1.0)]
        server = xllamacpp.Server(params)
        ask = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "logprobs": 1}
        bias = [[token, False] for token in banned]
        answer = server.handle_completions({**ask, "cache_prompt": False, "logit_bias": bias})
        assert "choices" in answer, answer
        tokens = answer["choices"][0]["logprobs"]["content"]
        return [int(token["id"]) for token in tokens], [float(token["logprob"]) for token in tokens]

    return greedy


def ours(model: Any, prompt: list[int], *, count: int, banned: Sequence[int] = ()) -> Reply:
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            suppress_tokens=[*banned] or None,
            pad_token_id=0,
        )
        logprobs = model(out).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
    tokens = out[0, len(prompt) :]
    return tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist()


def agree(first: Reply, second: Reply) -> bool:
    """The same tokens, with log-probs that differ by rounding."""
    return first[0] == second[0] and np.allclose(first[1], second[1], atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("folder", SHAPES, indirect=True)
def test_llama_cpp_continues_as_we_do(
    folder: Path, tmp_path: Path, export: Export, llama_cpp: Callable[..., Reply]
) -> None:
    base = loaded(folder).model
    version = adapter(tmp_path / "version", base)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    odd = [number for text, number in vocabulary.items() if not text.isascii()]  # llama.cpp reports whole characters
    prompt = [number * 7 % 250 + 5 for number in range(12)]
    asked: dict[str, Any] = {"prompt": prompt, "count": 8, "banned": [*odd, *range(3)]}
    before, wanted = ours(base, **asked), ours(version_model(base, str(version)), **asked)
    assert wanted[0] != before[0], "the adapter counts"
    plain = export("merged", folder, None, "plain.gguf")
    assert agree(llama_cpp(plain, **asked), before)
    assert agree(llama_cpp(export("merged", folder, version, "merged.gguf"), **asked), wanted)
    assert agree(llama_cpp(plain, **asked, lora=export("gguf", folder, version, "lora.gguf")), wanted)


@pytest.mark.slow
def test_llama_cpp_runs_the_embedded_model_with_an_adapter(
    tmp_path: Path, export: Export, llama_cpp: Callable[..., Reply]
) -> None:
    model = loaded(EMBEDDED)
    version = adapter(tmp_path / "version", model.model, alpha=8, strength=0.06)
    talk = [{"role": "user", "content": "What is tea?"}]
    prompt = model.tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
    wanted = ours(version_model(model.model, str(version)), prompt, count=12)
    assert wanted[0] != ours(model.model, prompt, count=12)[0], "the adapter counts"
    made = export("ollama", EMBEDDED, version)
    assert agree(llama_cpp(made / "model.gguf", prompt, count=12), wanted)
    assert 'SYSTEM """You are a helpful AI assistant' in (made / "Modelfile").read_text()
    plain = export("merged", EMBEDDED, None, "plain.gguf")
    assert agree(llama_cpp(plain, prompt, count=12, lora=export("gguf", EMBEDDED, version, "lora.gguf")), wanted)


# --- the command


def run(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code, (done.output, done.exception)
    return done


@pytest.fixture
def where(folder: Path, tmp_path: Path) -> tuple[str, ...]:
    """A run whose version 1, an adapter, is live."""
    version = adapter(tmp_path / "version", random_model("llama", **SIZES))
    (tmp_path / "run").mkdir()
    with TrainLedger(tmp_path / "run" / "ledger.db", sync="normal") as ledger:
        ledger.add_version(Version(number=0, parent=None, base="b", state="live"))
        ledger.add_version(Version(number=1, parent=0, base="b", adapter=str(version), state="live"))
    return ("--rl-buffer-dir", str(tmp_path / "run"), "--model", str(folder))


def test_the_command_names_the_file_for_the_version(
    where: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("export", "--version", "1", "--format", "gguf", *where).stdout == "openclaw-rl-v1-lora.gguf\n"
    assert run("export", "--format", "peft", *where).stdout == "openclaw-rl-v1-peft\n"
    made = run("export", "--version", "0", "--format", "ollama", "-o", "mine", *where)
    assert (made.stdout, "ollama create NAME -f mine/Modelfile" in made.stderr) == ("mine\n", True)
    assert read(tmp_path / "openclaw-rl-v1-lora.gguf")[0]["adapter.type"] == "lora"


def test_the_command_overwrites_nothing_and_names_what_is_wrong(where: tuple[str, ...], tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    wrong: list[tuple[tuple[str, ...], type[Exception], str]] = [
        (("-o", str(there)), ConfigError, "exists; name another place"),
        (("--version", "7"), NotInLedger, "7"),
        (("--version", "x"), ConfigError, "'x' is no version"),
    ]
    for words, kind, what in wrong:
        error = run("export", "--format", "gguf", *words, *where, code=1).exception
        assert isinstance(error, kind)
        assert what in str(error)
    for words in (("--version", "1"), ("--format", "gguf", "--tokens"), ("--format", "gguf", "-o", "-")):
        run("export", *words, *where, code=2)
    assert there.read_text() == "mine"
