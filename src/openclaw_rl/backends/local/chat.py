"""Between prompts and token ids: the model's own chat template, its end of a turn, its tokens as text."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from openclaw_rl.errors import RequestError
from openclaw_rl.types import Message, Prompt, Tokens


class Chat:
    """One tokenizer and what follows from it. Not for several threads at once: see `again`."""

    def __init__(self, tokenizer: Any, ends: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.end = self._end_of_turn()
        self.ends = frozenset((*ends, self.end))

    def again(self) -> Chat:
        """The same for another thread: tokenizers must not be used by two at once."""
        twin = copy.copy(self)
        twin.tokenizer = copy.deepcopy(self.tokenizer)
        return twin

    def encode(self, prompt: Prompt) -> Tokens:
        """The ids of a prompt and of its opening, ready for a reply.

        Raises RequestError when the template refuses the messages.
        """
        if any(message.images for message in prompt.messages):
            raise RequestError("this model reads text only, no images", field="messages", remedy="leave images out")
        tools = [_tool(tool.name, tool.description, tool.parameters) for tool in prompt.tools]
        if prompt.tool_choice == "none":
            tools = []
        try:
            text = self.tokenizer.apply_chat_template(
                [_message(message) for message in prompt.messages],
                tools=tools or None,
                add_generation_prompt=True,
                tokenize=False,
                **prompt.template,
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise RequestError(f"the model's chat template refused the messages: {error}", field="messages") from error
        return tuple(self.tokenizer.encode(text + prompt.opening, add_special_tokens=False))

    def tokenize(self, text: str) -> Tokens:
        """The ids of a reply's bare text and the end of its turn."""
        return (*self.tokenizer.encode(text, add_special_tokens=False), self.end)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ids, special tokens kept."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _end_of_turn(self) -> int:
        """The special token that the template writes after an assistant's words; the tokenizer's own end otherwise."""
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "zebra"}]
        try:
            text: str = self.tokenizer.apply_chat_template(talk, tokenize=False)
        except (TemplateError, TypeError, KeyError):
            text = ""  # a template with its own idea of messages: the tokenizer's end of sequence serves
        after = self.tokenizer.encode(text.rpartition("zebra")[2], add_special_tokens=False)
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        return int(next((token for token in after if token in special), self.tokenizer.eos_token_id))


def ends_of(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a reply by the model's own settings."""
    found: list[int] = []
    for value in (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id):
        found.extend(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return tuple(dict.fromkeys(found))


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
    """Templates write arguments from an object; text that is none stays as the model wrote it."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def _tool(name: str, description: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(parameters)}}
