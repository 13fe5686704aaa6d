"""Folders of models that a stranger made: each is refused with the file at fault, and no code of theirs runs."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny

from openclaw_rl.backends.hf.models import load
from openclaw_rl.backends.hf.plain_tokenizer import load_plain_tokenizer
from openclaw_rl.backends.hf.template_trial import try_template
from openclaw_rl.errors import ModelRefused

pytestmark = pytest.mark.slow

INDEX = "model.safetensors.index.json"


class Bomb:
    """Unpickling it leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy model; what is done to a copy of it is the attack."""
    return Path(save_tiny(tmp_path_factory.mktemp("model")))


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    for file in model.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    return place


def begin(folder: Path) -> Any:
    return load(str(folder), cache_dir=folder.parent, device="cpu", dtype="float32", progress=lambda text: None)


def refused(folder: Path) -> str:
    with pytest.raises(ModelRefused) as error:
        begin(folder)
    assert error.value.remedy
    return str(error.value)


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def header(file: Path, table: Any) -> None:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)


def test_the_healthy_folder_is_loaded(folder: Path) -> None:
    assert begin(folder).tokenizer.chat_template


# --- code ---


def test_pickled_weights_are_never_opened(folder: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for name in ("pytorch_model.bin", "adapter_model.bin", "tokenizer.model", "training_args.bin"):
        (folder / name).write_bytes(pickle.dumps(Bomb(ran)))
    assert begin(folder).model is not None, "the safetensors beside them are what counts"
    (folder / "model.safetensors").unlink()
    assert "no model.safetensors" in refused(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    assert "'pytorch_model.bin', which is no safetensors file beside it" in refused(folder)
    assert not ran.exists()


def test_code_that_a_model_brings_is_never_run(folder: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (folder / "modeling_evil.py").write_text(f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n")
    names = {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    change(folder / "config.json", auto_map=names, model_type="evil", architectures=["M"])
    assert "brings Python code of its own, which is never run" in refused(folder)
    change(folder / "config.json", model_type="llama")
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["modeling_evil.T", "modeling_evil.T"]})
    assert begin(folder).model.config.model_type == "llama", "its own architecture is taken from transformers"
    assert not ran.exists()


# --- files elsewhere ---


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "..", "sub/model.safetensors", "", 5])
def test_an_index_names_files_beside_it_alone(folder: Path, name: Any) -> None:
    other = folder.parent / "other"
    (folder / "sub").mkdir()
    other.mkdir()
    for place in (other, folder / "sub"):
        (place / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    assert INDEX in refused(folder)


@pytest.mark.parametrize("text", ["[]", "{}", "null", "[" * 100_000, '{"weight_map": []}', "\x00"])
def test_an_index_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / INDEX).write_text(text)
    assert INDEX in refused(folder)


@pytest.mark.parametrize("name", ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_link_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    secret = folder.parent / "secret"
    secret.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"root:x:0:0")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    assert f"{name} is a link to {secret}" in refused(folder)


def test_the_links_of_the_hubs_cache_stay_inside_their_model(folder: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1f", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in folder.iterdir():
        (blobs / f"blob-{file.name}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(blobs / f"blob-{file.name}")
    assert begin(snapshot).model is not None


# --- sizes ---


@pytest.mark.parametrize(
    "given",
    [
        {"num_hidden_layers": 10**9},
        {"vocab_size": 10**12},
        {"hidden_size": 2**40},
        {"intermediate_size": 10**10},
        {"text_config": {"num_hidden_layers": 10**9}},
    ],
)
def test_a_config_that_claims_more_than_the_weights_hold_is_refused_before_anything_is_built(
    folder: Path, given: dict[str, Any]
) -> None:
    change(folder / "config.json", **given)
    assert "config.json says" in refused(folder)


@pytest.mark.parametrize(
    "given",
    [
        {"hidden_size": -1},
        {"num_attention_heads": 0},
        {"hidden_size": "big"},
        {"vocab_size": None},
        {"rope_scaling": 5},
    ],
)
def test_a_config_of_impossible_sizes_is_refused(folder: Path, given: dict[str, Any]) -> None:
    change(folder / "config.json", **given)
    assert str(folder) in refused(folder)


@pytest.mark.parametrize(
    "table",
    [
        b"{",
        b"[" * 200_000,
        [],
        {"a": 5},
        {"a": {"dtype": "F32", "shape": "big", "data_offsets": [0, 0]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": []}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, "x"]}},
    ],
)
def test_a_header_of_weights_that_is_none_is_refused(folder: Path, table: Any) -> None:
    header(folder / "model.safetensors", table)
    assert "model.safetensors" in refused(folder)


def test_a_header_longer_than_any_is_not_read(folder: Path) -> None:
    """A sparse file of a terabyte whose header claims nearly all of it."""
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 2**40 - 100))
        file.truncate(2**40)
    assert "model.safetensors has no readable header" in refused(folder)


def test_huge_and_deep_files_of_settings_are_refused_by_both_readers(folder: Path) -> None:
    for name in ("tokenizer_config.json", "tokenizer.json"):
        good = (folder / name).read_text()
        for text in ("[" * 100_000, "5", "\x00", '{"model": {"type": "Evil"}}' if name == "tokenizer.json" else "[]"):
            (folder / name).write_text(text)
            assert "tokenizer" in refused(folder)
            with pytest.raises(ModelRefused, match="tokenizer"):
                load_plain_tokenizer(folder)
        (folder / name).write_text(good)


# --- chat templates ---

LOOPS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(9) %}{% endfor %}{% endfor %}{% endfor %}"
)
GROWS = "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
CALLS = "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}{{ messages[0]['content'] }}"
REACHES = "{{ messages.__class__.__mro__[1].__subclasses__() }}"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (LOOPS, "does not finish"),
        (GROWS, "does not finish within 5 seconds and 1024 MiB"),
        (REACHES, "accesses objects that no template needs"),
        ("{{ cycler.__init__.__globals__.os.system('touch RAN') }}", "accesses objects that no template needs"),
    ],
)
def test_a_template_that_loops_or_reaches_out_is_refused_before_it_is_used(
    folder: Path, template: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "chat_template.jinja").write_text(template.replace("RAN", str(folder / "ran")))
    for reader in (begin, load_plain_tokenizer):
        with pytest.raises(ModelRefused, match=why):
            reader(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "words", ["{% include '/etc/passwd' %}", "{% import '/etc/passwd' as p %}", "{% extends 'x' %}"]
)
def test_a_template_reads_no_file(folder: Path, words: str) -> None:
    (folder / "chat_template.jinja").write_text(words)
    read: Callable[..., Any] = load_plain_tokenizer(folder).apply_chat_template
    with pytest.raises(Exception, match="no loader"):
        read([{"role": "user", "content": "a"}])


@pytest.mark.parametrize("template", [CALLS, "{{ raise_exception('no') }}", "{{ messages[9].content }}", "{% broken"])
def test_a_template_that_wants_other_messages_is_for_the_request_to_refuse(template: str) -> None:
    try_template(template)
