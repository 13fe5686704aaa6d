"""A model's tokenizer and chat template from its files, by `tokenizers` and `jinja2`: no torch, no transformers.

For a process that renders prompts for a remote engine. It implements the parts of a `transformers` tokenizer that
`ChatTemplate` uses, and returns the same ids; a model without a ``tokenizer.json`` is read by `transformers` itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.backends.hf.folder_checks import loading, read_table
from openclaw_rl.backends.hf.template_trial import compiled, try_template
from openclaw_rl.errors import MissingExtra, ModelRefused

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MORE = ("additional_special_tokens", "extra_special_tokens")


def load_plain_tokenizer(folder: Path, *, chat_template: str | None = None) -> Any:
    """Load the model's tokenizer from ``folder``; ``chat_template`` is another template's text or file.

    Raise `ModelRefused` without a template, `MissingExtra` if a package is missing.
    """
    try:
        with loading(f"the tokenizer in {folder}"):
            tokenizer: Any = (
                PlainTokenizer(folder) if (folder / "tokenizer.json").is_file() else _by_transformers(folder)
            )
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "engine") from error
    return with_template(tokenizer, folder, chat_template)


def with_template(tokenizer: Any, folder: Path, chat_template: str | None) -> Any:
    """Set the tokenizer's one template: from a text or file, otherwise its own, of several the default one."""
    if chat_template is not None:
        file = Path(chat_template) if len(chat_template) < 1024 and "{" not in chat_template else None
        tokenizer.chat_template = file.read_text() if file else chat_template
    if isinstance(tokenizer.chat_template, dict):
        tokenizer.chat_template = tokenizer.chat_template.get("default")
    if not tokenizer.chat_template:
        raise ModelRefused(
            f"the model in {folder} has no chat template: it is a base model, or its tokenizer is incomplete",
            remedy="choose an instruct model, or set chat_template to a template's text or file",
        )
    try_template(tokenizer.chat_template)
    return tokenizer


def _by_transformers(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


class PlainTokenizer:
    """A folder's tokenizer. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        settings = _settings(folder)
        self.backend_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.added_tokens_decoder = self.backend_tokenizer.get_added_tokens_decoder()
        self.special = {name: text for name in _NAMED if (text := _text(settings.get(name)))}
        self.all_special_tokens = [*self.special.values(), *_more(settings)]
        ids = (self.backend_tokenizer.token_to_id(text) for text in self.all_special_tokens)
        self.all_special_ids = [token for token in ids if token is not None]
        self.eos_token_id = self.backend_tokenizer.token_to_id(self.special.get("eos_token", ""))
        self.chat_template: Any = _own_template(folder, settings)
        self._compiled: tuple[str, Any] | None = None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Encode a text."""
        ids: list[int] = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, tokens: Sequence[int], **_: object) -> str:
        """Decode ids to text, including special tokens."""
        text: str = self.backend_tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        **variables: Any,
    ) -> str:
        """Render the prompt as text."""
        inputs = {"messages": [_thinking(message) for message in messages], "tools": tools, "documents": None}
        names = {**self.special, **variables}
        text: str = self._template().render(**{**names, **inputs}, add_generation_prompt=add_generation_prompt)
        return text

    def _template(self) -> Any:
        if self._compiled is None or self._compiled[0] != self.chat_template:
            self._compiled = (self.chat_template, compiled(self.chat_template))
        return self._compiled[1]


def _settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = folder / name
        if file.is_file():
            settings.update(read_table(file))
    return settings


def _text(value: Any) -> str | None:
    """Return a special token's text; it is stored as text, or in a table."""
    return value.get("content") if isinstance(value, dict) else value


def _more(settings: Mapping[str, Any]) -> list[str]:
    texts: list[str] = []
    for name in _MORE:
        tokens = settings.get(name) or ()
        texts += [text for text in map(_text, tokens.values() if isinstance(tokens, dict) else tokens) if text]
    return list(dict.fromkeys(texts))


def _own_template(folder: Path, settings: Mapping[str, Any]) -> Any:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    file = folder / "chat_template.json"
    template = read_table(file).get("chat_template") if file.is_file() else settings.get("chat_template")
    return {row["name"]: row["template"] for row in template} if isinstance(template, list) else template


def _thinking(message: Mapping[str, Any]) -> dict[str, Any]:
    """Add an assistant's reasoning under the second name that some templates read."""
    thoughts = message.get("reasoning_content")
    return dict(message) if thoughts is None else {"thinking": thoughts, **message}
