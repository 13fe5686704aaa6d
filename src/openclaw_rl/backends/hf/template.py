"""Between prompts and token ids: the model's chat template, its end of turn, and tokens as text."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from jinja2 import TemplateError

from openclaw_rl.errors import RequestError
from openclaw_rl.formats.variables import check_variables
from openclaw_rl.types import Message, Prompt, Tokens, Tool

# Special tokens in text are text: contents from people, tools and documents can never open or close a turn.
#
# A template writes its special tokens as text among the contents, so the rendered prompt does not distinguish them. So
# a character that occurs nowhere in the prompt (a mark) is inserted into contents wherever they spell a special token,
# or could spell one together with adjacent text. After rendering, a special token with a mark inside it is plain text,
# and the text is cut there before encoding. A prompt whose contents spell no special token is encoded unchanged.
#
# Counted tokens (`Guard`): those that the tokenizer declares special, those that the template itself writes, and those
# of the form ``<|name|>``. In assistant messages plain tags (``<think>``, ``<tool_call>``) are unchanged: a reply
# spells its parts with them, and templates search for them. A single word is never marked, because templates compare
# words (``function``, ``string``). A tokenizer that begins each text with a space adds one at a cut.

_BARS = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)
TAG = re.compile(r"</?\w[\w-]*>")
_WORD = re.compile(r"[\w.-]*")
_SIGNS = range(0xF0000, 0xFFFFE)
"""private use characters: without a meaning, and not white space, so that templates do not trim them"""


class Spellings:
    """A set of special tokens, and their positions in a text."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name for name in names if len(name) > 1)
        heads: dict[str, set[int]] = {}
        for name in self._names:
            heads.setdefault(name[:2], set()).add(len(name))
        self._lengths = {head: sorted(lengths, reverse=True) for head, lengths in heads.items()}
        first, second = ("".join(map(re.escape, sorted({head[at] for head in heads}))) for at in (0, 1))
        self._head = re.compile(f"[{first}](?=[{second}])" if heads else r"(?!)")
        self._begins = {name[:size] for name in self._names for size in range(1, len(name))}
        self._ends = {name[size:] for name in self._names for size in range(1, len(name))}
        self._longest = max(map(len, self._names), default=0)
        self._all = "\0".join(sorted(self._names))

    def found(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield every special token's start and end in a text, including overlaps; the longest at each start."""
        for head in self._head.finditer(text):
            at = head.start()
            for length in self._lengths.get(text[at : at + 2], ()):
                if text[at : at + length] in self._names:
                    yield at, at + length
                    break

    def marked(self, text: str, mark: str) -> str:
        """Insert a mark into every special token in the text, and at an end that may become part of one."""
        body = text.strip()
        if _WORD.fullmatch(body):
            return text
        first = text.index(body)
        places = {at + 1 for at, _ in self.found(text)}
        sizes = range(1, min(len(body), self._longest) + 1)
        inside = len(body) < self._longest and body in self._all
        if inside or any(body[:size] in self._ends for size in sizes):
            places.add(first)
        if any(body[-size:] in self._begins for size in sizes):
            places.add(first + len(body))
        return _at(text, places, mark) if places else text

    def cut(self, text: str, mark: str) -> list[str]:
        """Remove the marks from a rendered text and cut it wherever a mark is inside a special token."""
        if mark not in text:
            return [text]
        parts = text.split(mark)
        plain = "".join(parts)
        marks, at = set(), 0
        for part in parts[:-1]:
            at += len(part)
            marks.add(at)
        cuts = sorted({place for start, end in self.found(plain) for place in range(start + 1, end) if place in marks})
        return [plain[a:b] for a, b in zip([0, *cuts], [*cuts, len(plain)], strict=True)]


class Guard:
    """A tokenizer's and its template's special tokens. ``all`` count in contents, ``turns`` also in replies."""

    def __init__(self, tokenizer: Any) -> None:
        template = json.dumps(tokenizer.chat_template, ensure_ascii=False) if tokenizer.chat_template else ""
        added = tokenizer.added_tokens_decoder.values()
        special = {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        unlisted = {token.content for token in added} - special
        counted = special | {name for name in unlisted if _BARS.fullmatch(name) or (name.strip() and name in template)}
        self.all = Spellings(counted)
        self.turns = Spellings(name for name in counted if name in special or not TAG.fullmatch(name))
        self._escapes = bool(re.search(r"ensure_ascii\s*=\s*true", template, re.IGNORECASE))

    def pieces(self, text: str, mark: str) -> list[str]:
        """Split a rendered text with marked contents into pieces that are encoded separately."""
        if self._escapes:
            text = text.replace(json.dumps(mark)[1:-1], mark)
        return self.all.cut(text, mark)


def free_mark(texts: Iterable[str]) -> str:
    """Return a character that no text contains."""
    taken = set().union(*texts)
    for code in _SIGNS:
        if chr(code) not in taken:
            return chr(code)
    raise RequestError("the prompt holds every private character there is", field="messages")


def within(value: Any, change: Callable[[str], str]) -> Any:
    """Change every text in a JSON value, including field names."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): within(item, change) for name, item in value.items()}
    return [within(item, change) for item in value] if isinstance(value, list | tuple) else value


def _at(text: str, places: set[int], mark: str) -> str:
    cuts = sorted(places)
    return mark.join(text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))


DEEPEST = 64
"""deepest nesting of call arguments that a template gets as an object"""


class ChatTemplate:
    """One tokenizer and its derived settings. Not thread-safe: see `again`."""

    def __init__(self, tokenizer: Any, ends: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.end = self._end_of_turn()
        self.ends = frozenset((*ends, self.end))
        self._guard = Guard(tokenizer)

    def again(self) -> ChatTemplate:
        """Copy it for another thread, because tokenizers are not thread-safe."""
        twin = copy.copy(self)
        twin.tokenizer = copy.deepcopy(self.tokenizer)
        return twin

    def encode(self, prompt: Prompt) -> Tokens:
        """Encode a prompt and its opening, ready for a reply; special tokens in contents stay text.

        Raise `RequestError` if the template, the tokenizer or the model cannot process the prompt.
        """
        if any(message.images for message in prompt.messages):
            raise RequestError("this model reads text only, no images", field="messages", remedy="leave images out")
        check_variables(prompt.template)
        try:
            inputs = _TemplateInputs.of(prompt)
            mark = free_mark([*inputs.texts(), prompt.opening])
            text = self._render(inputs.marked(self._guard, mark)) + self._opening(prompt.opening, mark)
            return self._encode(text, mark)
        except RequestError:
            raise
        except Exception as error:  # a template is a program: any failure is due to these messages
            what = f"{type(error).__name__}: {error}"[:300]
            raise RequestError(f"the model's chat template refused the messages: {what}", field="messages") from error

    def tokenize(self, text: str) -> Tokens:
        """Encode a reply's bare text and the end-of-turn token; the text itself ends no turn."""
        mark = free_mark([text])
        return (*self._encode(self._guard.turns.marked(text, mark), mark), self.end)

    def _render(self, given: _TemplateInputs) -> str:
        text: str = self.tokenizer.apply_chat_template(
            given.messages, tools=given.tools or None, add_generation_prompt=True, tokenize=False, **given.variables
        )
        return text

    def _opening(self, text: str, mark: str) -> str:
        """Keep an opening's leading tag as the model writes it; the remainder, which may name a tool, is content."""
        tag = TAG.match(text)
        head = tag[0] if tag else ""
        return head + self._guard.all.marked(text.removeprefix(head), mark)

    def _encode(self, text: str, mark: str) -> Tokens:
        """Encode a marked text; raise `RequestError` for half a character."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("the text holds half a character (a lone surrogate)", field="messages") from error
        pieces = self._guard.pieces(text, mark)
        if len(pieces) == 1:
            return tuple(self.tokenizer.encode(pieces[0], add_special_tokens=False))
        encodings = self.tokenizer.backend_tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        return tuple(chain.from_iterable(piece.ids for piece in encodings))

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode ids to text, including special tokens."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _end_of_turn(self) -> int:
        """Return the special token that the template writes after an assistant's words, or the tokenizer's own end."""
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "zebra"}]
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False)
        except (TemplateError, TypeError, KeyError):
            text = ""  # the template requires other messages: use the tokenizer's end of sequence
        after = self.tokenizer.encode(text.rpartition("zebra")[2], add_special_tokens=False)
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        return int(next((token for token in after if token in special), self.tokenizer.eos_token_id))


def ends_of(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return every token that ends a reply by the model's own settings."""
    tokens: list[int] = []
    values = (getattr(part, "eos_token_id", None) for part in (model.generation_config, model.config, tokenizer))
    for value in values:
        tokens.extend(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return tuple(dict.fromkeys(tokens))


@dataclass(frozen=True, slots=True)
class _TemplateInputs:
    """A template's inputs: plain JSON."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]

    @classmethod
    def of(cls, prompt: Prompt) -> _TemplateInputs:
        tools = [] if prompt.tool_choice == "none" else [_tool(tool) for tool in prompt.tools]
        return cls([_message(message) for message in prompt.messages], tools, dict(prompt.template))

    def texts(self) -> list[str]:
        """Return every text in the inputs."""
        collected: list[str] = []

        def note(text: str) -> str:
            collected.append(text)
            return text

        within([self.messages, self.tools, self.variables], note)
        return collected

    def marked(self, guard: Guard, mark: str) -> _TemplateInputs:
        """Mark every special token in the contents."""

        def text(value: str) -> str:
            return guard.all.marked(value, mark)

        def reply(value: str) -> str:
            return guard.turns.marked(value, mark)

        def message(old: dict[str, Any]) -> dict[str, Any]:
            change = reply if old["role"] == "assistant" else text
            return {name: within(value, change if name in _REPLY_FIELDS else text) for name, value in old.items()}

        messages = [message(old) for old in self.messages]
        return _TemplateInputs(messages, within(self.tools, text), within(self.variables, text))


_REPLY_FIELDS = frozenset({"content", "reasoning_content"})
"""fields that an assistant wrote verbatim"""


def _message(message: Message) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        entry["reasoning_content"] = message.reasoning
    if message.tool_calls:
        entry["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        entry["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        entry["name"] = message.name
    return entry


def _arguments(text: str) -> Any:
    """Parse call arguments into an object for templates; other text stays as the model wrote it.

    So does an object that is nested too deep to be written, or contains half a character.
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
