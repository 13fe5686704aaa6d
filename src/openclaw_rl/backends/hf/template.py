"""Between prompts and token ids: the model's own chat template, its end of a turn, its tokens as text."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from jinja2 import TemplateError

from openclaw_rl.backends.hf.special_tokens import TAG, Guard, free_mark, within
from openclaw_rl.errors import RequestError
from openclaw_rl.formats.variables import check_variables
from openclaw_rl.types import Message, Prompt, Tokens, Tool

DEEPEST = 64
"""how deep the arguments of a call may be nested to be handed to a template as an object"""


class ChatTemplate:
    """One tokenizer and what follows from it. Not for several threads at once: see `again`."""

    def __init__(self, tokenizer: Any, ends: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.end = self._end_of_turn()
        self.ends = frozenset((*ends, self.end))
        self._guard = Guard(tokenizer)

    def again(self) -> ChatTemplate:
        """The same for another thread: tokenizers must not be used by two at once."""
        twin = copy.copy(self)
        twin.tokenizer = copy.deepcopy(self.tokenizer)
        return twin

    def encode(self, prompt: Prompt) -> Tokens:
        """The ids of a prompt and its opening, ready for a reply; what contents spell stays text (`special_tokens`).

        Raises RequestError for whatever the template, the tokenizer or this model cannot make of it.
        """
        if any(message.images for message in prompt.messages):
            raise RequestError("this model reads text only, no images", field="messages", remedy="leave images out")
        check_variables(prompt.template)
        try:
            given = _TemplateInputs.of(prompt)
            mark = free_mark([*given.texts(), prompt.opening])
            text = self._render(given.marked(self._guard, mark)) + self._opening(prompt.opening, mark)
            return self._encode(text, mark)
        except RequestError:
            raise
        except Exception as error:  # a template is a program: whatever it fails with, it fails for these messages
            what = f"{type(error).__name__}: {error}"[:300]
            raise RequestError(f"the model's chat template refused the messages: {what}", field="messages") from error

    def tokenize(self, text: str) -> Tokens:
        """The ids of a reply's bare text and the end of its turn; the text itself ends no turn."""
        mark = free_mark([text])
        return (*self._encode(self._guard.turns.marked(text, mark), mark), self.end)

    def _render(self, given: _TemplateInputs) -> str:
        text: str = self.tokenizer.apply_chat_template(
            given.messages, tools=given.tools or None, add_generation_prompt=True, tokenize=False, **given.variables
        )
        return text

    def _opening(self, text: str, mark: str) -> str:
        """The tag that an opening begins with is written as the model would; the rest may name a tool."""
        tag = TAG.match(text)
        kept = tag[0] if tag else ""
        return kept + self._guard.all.marked(text.removeprefix(kept), mark)

    def _encode(self, text: str, mark: str) -> Tokens:
        """The ids of a text with marks; raises RequestError for half a character."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("the text holds half a character (a lone surrogate)", field="messages") from error
        pieces = self._guard.pieces(text, mark)
        if len(pieces) == 1:
            return tuple(self.tokenizer.encode(pieces[0], add_special_tokens=False))
        found = self.tokenizer.backend_tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        return tuple(chain.from_iterable(piece.ids for piece in found))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ids, special tokens kept."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _end_of_turn(self) -> int:
        """The special token that the template writes after an assistant's words; the tokenizer's own end otherwise."""
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "zebra"}]
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False)
        except (TemplateError, TypeError, KeyError):
            text = ""  # a template with its own idea of messages: the tokenizer's end of sequence serves
        after = self.tokenizer.encode(text.rpartition("zebra")[2], add_special_tokens=False)
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        return int(next((token for token in after if token in special), self.tokenizer.eos_token_id))


def ends_of(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a reply by the model's own settings."""
    found: list[int] = []
    known = (getattr(part, "eos_token_id", None) for part in (model.generation_config, model.config, tokenizer))
    for value in known:
        found.extend(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _TemplateInputs:
    """What a template is handed: plain JSON."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]

    @classmethod
    def of(cls, prompt: Prompt) -> _TemplateInputs:
        tools = [] if prompt.tool_choice == "none" else [_tool(tool) for tool in prompt.tools]
        return cls([_message(message) for message in prompt.messages], tools, dict(prompt.template))

    def texts(self) -> list[str]:
        """Every text in it."""
        found: list[str] = []

        def note(text: str) -> str:
            found.append(text)
            return text

        within([self.messages, self.tools, self.variables], note)
        return found

    def marked(self, guard: Guard, mark: str) -> _TemplateInputs:
        """The same with a mark wherever a content spells a special token; see `special_tokens`."""

        def text(value: str) -> str:
            return guard.all.marked(value, mark)

        def reply(value: str) -> str:
            return guard.turns.marked(value, mark)

        def message(old: dict[str, Any]) -> dict[str, Any]:
            own = reply if old["role"] == "assistant" else text
            return {name: within(value, own if name in _REPLY_FIELDS else text) for name, value in old.items()}

        messages = [message(old) for old in self.messages]
        return _TemplateInputs(messages, within(self.tools, text), within(self.variables, text))


_REPLY_FIELDS = frozenset({"content", "reasoning_content"})
"""what the assistant wrote in so many words"""


def _message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        made["reasoning_content"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        made["name"] = message.name
    return made


def _arguments(text: str) -> Any:
    """Templates write arguments from an object; text that is none stays as the model wrote it.

    So does an object that is nested too deep to be written, or that holds half a character.
    """
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) and not _deeper(value, DEEPEST) else text


def _deeper(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        inner = (item for node in layer for item in (node.values() if isinstance(node, dict) else node))
        layer = [item for item in inner if isinstance(item, dict | list)]
    return bool(layer)


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
