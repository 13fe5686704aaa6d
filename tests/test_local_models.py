"""Loading: what can chat, fits and is whole is loaded; anything else is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from defaults import engine_args
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from openclaw_rl.backends.hf.finding import find, format_of, inspect
from openclaw_rl.backends.hf.models import available, check_fits, fastest_dtype, load, pick_device, pick_dtype
from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.backends.local.engine import worker
from openclaw_rl.backends.local.engine.model_runner import row_bytes, version_bytes
from openclaw_rl.backends.local.engine.runner_choice import model_runner_of
from openclaw_rl.backends.local.engine.worker import cache_rows
from openclaw_rl.errors import ModelRefused, RequestError
from openclaw_rl.machine import GIB
from openclaw_rl.types import Message, Prompt, Tool, ToolCall

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | length }}\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls %}{{ call.function.name }}:{{ call.function.arguments.a }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

pytestmark = pytest.mark.slow
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per byte, and three special ones: 259 in all."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index + 3 for index, letter in enumerate(letters)}
    raw = Tokenizer(models.BPE(vocab={**{name: index for index, name in enumerate(SPECIAL)}, **vocabulary}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|endoftext|>")
    tokenizer.chat_template = template
    return tokenizer


def make_folder(
    folder: Path,
    *,
    seed: int = 0,
    template: str | None = TEMPLATE,
    shards: str = "5GB",
    layers: int = 2,
    width: int = 96,
) -> Path:
    """A small random llama with a byte tokenizer, as a user would have it on disk."""
    from transformers import AutoModelForCausalLM, LlamaConfig  # seconds, which the tokenizer alone does not take

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=48,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=0,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size=shards)
    byte_tokenizer(template).save_pretrained(folder)
    return folder


def quiet(text: str) -> None:
    """Nobody waits."""


def prompt(*texts: str, **rest: Any) -> Prompt:
    return Prompt(messages=tuple(Message(role="user", content=text) for text in texts), **rest)


def test_a_folder_is_loaded_with_its_identity_context_and_template(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tiny")
    loaded = load(str(folder), cache_dir=tmp_path, device="cpu", dtype="float32", progress=quiet)
    assert (loaded.name, loaded.context, loaded.tool_format) == ("tiny", 1024, "hermes")
    assert loaded.base == f"tiny-{inspect(folder).identity}"
    assert loaded.model.dtype == torch.float32
    # 259 x 48 shared embedding; 2 layers of 2 x 48x48 + 2 x 16x48 + 3 x 48x96 + 2 x 48; one last norm of 48
    assert inspect(folder).parameters == 259 * 48 + 2 * (2 * 48 * 48 + 2 * 16 * 48 + 3 * 48 * 96 + 96) + 48


def test_weights_of_one_shape_have_different_identities(tmp_path: Path) -> None:
    one, two = make_folder(tmp_path / "one"), make_folder(tmp_path / "two", seed=1)
    assert inspect(one).identity != inspect(two).identity
    assert inspect(one).identity == inspect(make_folder(tmp_path / "again")).identity


def test_parameters_of_mxfp4_are_counted_as_they_are_when_unpacked(tmp_path: Path) -> None:
    """2 experts of 4 rows of 64 numbers: 2 blocks of 32 a row, 16 bytes and a scale each; and a bias of 2 x 4."""
    from safetensors.torch import save_file

    packed = {
        "experts.gate_up_proj_blocks": torch.zeros(2, 4, 2, 16, dtype=torch.uint8),
        "experts.gate_up_proj_scales": torch.zeros(2, 4, 2, dtype=torch.uint8),
        "experts.gate_up_proj_bias": torch.zeros(2, 4, dtype=torch.bfloat16),
    }
    save_file(packed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert inspect(tmp_path).parameters == 2 * 4 * 64 + 2 * 4


def test_a_model_without_a_chat_template_is_refused_unless_one_is_given(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "bare", template=None)
    with pytest.raises(ModelRefused, match=r"no chat template.*instruct"):
        load(str(folder), cache_dir=tmp_path, device="cpu", dtype="float32", progress=quiet)
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    for given in (TEMPLATE, str(file)):
        loaded = load(
            str(folder), cache_dir=tmp_path, device="cpu", dtype="float32", progress=quiet, chat_template=given
        )
        assert loaded.tokenizer.chat_template == TEMPLATE


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "shards", shards="60KB")
    lost = sorted(folder.glob("model-0*.safetensors"))[0]
    lost.unlink()
    with pytest.raises(ModelRefused, match=rf"1 of \d files are missing \({lost.name}\)"):
        inspect(folder)


def test_a_file_cut_short_is_refused_with_its_numbers(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "cut")
    file = folder / "model.safetensors"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelRefused, match=f"{size - 100:,} of {size:,} bytes"):
        inspect(folder)
    file.write_bytes(b"not a header")
    with pytest.raises(ModelRefused, match="no readable header"):
        inspect(folder)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"no config\.json"):
        inspect(tmp_path)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ModelRefused, match=r"big needs 11\.0 GiB on cpu as float32, 8\.0 GiB are available; choose"):
        check_fits("big", 10 * GIB, 8 * GIB, kind=torch.float32, place=torch.device("cpu"))
    check_fits("small", 7 * GIB, 8 * GIB, kind=torch.float32, place=torch.device("cpu"))


def test_a_cache_that_does_not_fit_beside_the_weights_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(str(make_folder(tmp_path / "m")), cache_dir=tmp_path, device="cpu", dtype="float32", progress=quiet)
    runner = model_runner_of(loaded.model)
    each = row_bytes(loaded.model)
    assert each == 2 * 2 * 2 * 8 * 4, "two layers, keys and values, two heads of 8, four bytes"
    asked = engine_args(model="m", cache_dir="c", max_batch=4)
    spare = version_bytes(loaded.model, runner)
    monkeypatch.setattr(worker, "available", lambda _: spare + 4 * 2048 * each)
    assert cache_rows(loaded, runner, asked) == 2048, "a quarter of what the next version leaves"
    monkeypatch.setattr(worker, "available", lambda _: 64 * GIB)
    many = replace(asked, max_batch=4096)
    assert cache_rows(loaded, runner, many) == min(4096 * loaded.context, 2 * GIB // each), "enough, and no more"
    monkeypatch.setattr(worker, "CPU_CACHE", 0)
    assert cache_rows(loaded, runner, many) == 4 * loaded.context, "but four full contexts"
    monkeypatch.setattr(worker, "available", lambda _: spare + 4 * 1000 * each)
    with pytest.raises(
        ModelRefused, match="1,000 tokens at 256 bytes each need 0.00 GiB .1,024 tokens at least."
    ) as told:
        cache_rows(loaded, runner, asked)
    assert "lower cache_tokens or context, choose a smaller model" in str(told.value)
    with pytest.raises(ModelRefused, match="4,000,000 tokens at 256 bytes each need 0.95 GiB"):
        cache_rows(loaded, runner, replace(asked, cache_tokens=4_000_000))


def test_a_name_that_leads_nowhere_says_what_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="Hugging Face id"):
        find("./nothing-here", cache_dir=tmp_path, progress=quiet)


def test_a_file_that_is_no_gguf_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelRefused, match="cannot be converted"):
        find(str(file), cache_dir=tmp_path / "cache", progress=quiet)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("... <tool_call>\n{...} ...", "hermes"),
        ("{{ '<|python_tag|>' }}", "llama"),
        ("[func_name1(params_name1=value)]", "pythonic"),
        ("{{ '<|start|>assistant<|channel|>final<|message|>' }}", "harmony"),
        ("{{ message.content }}", "none"),
    ],
)
def test_the_template_tells_how_tools_are_called(template: str, expected: str) -> None:
    assert format_of(template) == expected


def test_dtypes_and_devices_by_name(tmp_path: Path) -> None:
    small, large = 135_000_000, 4_000_000_000
    assert pick_dtype("bfloat16", torch.device("cpu"), tmp_path, parameters=small) == torch.bfloat16
    assert pick_dtype("auto", torch.device("cuda"), tmp_path, parameters=small) == torch.float32
    assert pick_dtype("auto", torch.device("cuda"), tmp_path, parameters=large) == torch.bfloat16
    assert pick_dtype("auto", torch.device("cpu"), tmp_path, parameters=small) == torch.float32
    with pytest.raises(ModelRefused, match="no dtype called 'int3'"):
        pick_dtype("int3", torch.device("cpu"), tmp_path, parameters=small)
    if not torch.cuda.is_available():
        assert pick_device("auto").type == "cpu"
        with pytest.raises(ModelRefused, match="no GPU"):
            pick_device("cuda")


def test_the_fastest_dtype_is_measured_once_and_remembered(tmp_path: Path) -> None:
    first = fastest_dtype(tmp_path)
    assert first in (torch.float32, torch.bfloat16)
    file = tmp_path / "cpu.json"
    (key,) = json.loads(file.read_text())
    other = "float32" if first == torch.bfloat16 else "bfloat16"
    file.write_text(json.dumps({key: other}))
    assert fastest_dtype(tmp_path) != first


def test_some_memory_is_available() -> None:
    assert 1 << 20 < available(torch.device("cpu")) < 1 << 50


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_a_prompt_goes_through_the_template_and_a_reply_ends_its_turn() -> None:
    chat = ChatTemplate(byte_tokenizer(), ends=[0])
    ids = chat.encode(prompt("hé"))
    assert chat.decode(ids) == "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n"
    assert len(ids) == 1 + 5 + 3 + 2 + 1 + 10
    assert chat.end == 2
    assert chat.ends == {0, 2}
    assert chat.decode(chat.tokenize("ok")) == "ok<|im_end|>"


def test_tools_and_calls_reach_the_template_as_objects() -> None:
    chat = ChatTemplate(byte_tokenizer())
    call = Message(role="assistant", tool_calls=(ToolCall(id="1", name="f", arguments='{"a": 7}'),))
    asked = Prompt(messages=(Message(role="user", content="x"), call), tools=(Tool(name="f"),))
    assert "f:7" in chat.decode(chat.encode(asked))
    assert chat.decode(chat.encode(asked)).startswith("<tool_call>1")
    silent = Prompt(messages=asked.messages, tools=asked.tools, tool_choice="none")
    assert not chat.decode(chat.encode(silent)).startswith("<tool_call>")


def test_what_the_template_or_the_model_cannot_read_is_the_callers_fault() -> None:
    chat = ChatTemplate(byte_tokenizer("{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(RequestError, match="roles must alternate"):
        chat.encode(prompt("a", "b"))
    seen = Prompt(messages=(Message(role="user", content="look", images=("data:image/png;base64,AA==",)),))
    with pytest.raises(RequestError, match="no images"):
        ChatTemplate(byte_tokenizer()).encode(seen)


@pytest.fixture(scope="session")
def embedded(request: pytest.FixtureRequest) -> Path:
    """A cache folder with the embedded model in it; it is kept between runs, as a user's is."""
    folder = Path(request.config.cache.mkdir("embedded"))
    find("embedded", cache_dir=folder, progress=quiet)
    return folder


@pytest.mark.slow
def test_the_embedded_model_is_converted_once_and_knows_its_capitals(embedded: Path) -> None:
    lines: list[str] = []
    loaded = load("embedded", cache_dir=embedded, device="cpu", dtype="float32", progress=lines.append)
    assert lines == ["loading SmolLM2-135M-Instruct: 135 million parameters as float32"]
    assert loaded.base.startswith("SmolLM2-135M-Instruct-")
    assert loaded.context == 8192
    chat = ChatTemplate(loaded.tokenizer)
    ids = torch.tensor([chat.encode(prompt("What is the capital of France? Answer in one word."))])
    out = loaded.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert "Paris" in chat.decode(out[0, ids.shape[1] :].tolist())
