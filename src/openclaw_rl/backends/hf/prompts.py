"""The model's tokenizer and chat template on this side of an engine; slow work runs off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from openclaw_rl.backends.hf.detokenizer import ReplyText, TokenChunk, TopLogprobs
from openclaw_rl.backends.hf.finding import ends_in, find, find_tokenizer, format_of, inspect, settings_of
from openclaw_rl.backends.hf.plain_tokenizer import PlainTokenizer, load_plain_tokenizer
from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.ports import Alternative, Delta, Piece
from openclaw_rl.types import Completion, Finish, Message, Prompt, Sampling, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Facts from a model's folder."""

    folder: Path
    name: str
    base: str
    parameters: int
    linear: tuple[str, ...]
    """its linear layers' names, which adapters may change"""
    heads: int | None
    """attention heads, if its settings contain them"""
    context: int
    tool_format: str
    chat: ChatTemplate


def read_model(
    model: str, *, cache_dir: Path, chat_template: str | None, tool_format: str | None, progress: Callable[[str], None]
) -> ModelFiles:
    """Find a model and read everything but its weights; raise `ModelRefused` if it cannot chat."""
    folder, name = find(model, cache_dir=cache_dir, progress=progress)
    tokenizer = load_plain_tokenizer(folder, chat_template=chat_template)
    config = settings_of(folder, "config.json")
    sizes = config.get("text_config") or config
    weights = inspect(folder)
    return ModelFiles(
        folder=folder,
        name=name,
        base=f"{name}-{weights.identity}",
        parameters=weights.parameters,
        linear=weights.linear,
        heads=sizes.get("num_attention_heads"),
        context=int(sizes.get("max_position_embeddings") or 2048),
        tool_format=tool_format or format_of(tokenizer.chat_template),
        chat=ChatTemplate(tokenizer, ends_in(folder)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFiles:
    """Chat facts from a model's files. ``context`` None: not in the files."""

    template: ChatTemplate
    tool_format: str
    context: int | None


def read_chat(model: str, *, cache_dir: Path, chat_template: str | None) -> ChatFiles:
    """Read a remote model's tokenizer and chat template; raise `ModelRefused` without them."""
    folder = find_tokenizer(model, cache_dir=cache_dir)
    tokenizer = load_plain_tokenizer(folder, chat_template=chat_template)
    config = settings_of(folder, "config.json")
    return ChatFiles(
        template=ChatTemplate(tokenizer, ends_in(folder)),
        tool_format=format_of(tokenizer.chat_template),
        context=(config.get("text_config") or config).get("max_position_embeddings"),
    )


class PromptEncoder:
    """Converts prompts to tokens in its own thread, tokens to text at once."""

    def __init__(self, chat: ChatTemplate) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="openclaw-prompts")
        self._encoder = chat
        # a `transformers` tokenizer is not thread-safe
        self._decoder = chat if isinstance(chat.tokenizer, PlainTokenizer) else chat.again()
        self.ends = chat.ends
        self.text_of = lru_cache(maxsize=65536)(self._text_of)

    async def encode(self, prompt: Prompt) -> Tokens:
        """Return the prompt's ids, ready for a reply."""
        return await self._run(self._encoder.encode, prompt)

    async def tokenize(self, text: str) -> Tokens:
        """Encode a reply's bare text and the end-of-turn token."""
        return await self._run(self._encoder.tokenize, text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode ids to text, including special tokens."""
        return self.text_of(tokens[0]) if len(tokens) == 1 else self._decoder.decode(tokens)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

    def _text_of(self, token: int) -> str:
        return self._decoder.decode((token,))

    async def _run(self, work: Callable[..., Tokens], given: Prompt | str) -> Tokens:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, given)


# A reply from an engine as it arrives: tokens and log-probs in, deltas and a completion out.


class Reply:
    """One reply to ``prompt``, which is empty until the engine reports it, if the engine rendered it."""

    def __init__(self, text: PromptEncoder, prompt: Tokens, sampling: Sampling, *, limit: int) -> None:
        self.prompt, self.sampling = prompt, sampling
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.finish: Finish | None = None
        self._limit = limit
        self._text_of = text.text_of
        self._words = ReplyText(text.decode, stops=sampling.stop, ends=text.ends, limit=limit)

    @property
    def text(self) -> str:
        """Text shown so far."""
        return self._words.text

    @property
    def left(self) -> int:
        """Remaining tokens."""
        return self._limit - len(self.tokens)

    def take(self, chunk: TokenChunk) -> Delta | None:
        """Return a chunk's delta, None if it adds nothing. Tokens after the end are dropped."""
        if chunk.prompt is not None and not self.prompt:
            self.prompt = chunk.prompt
        text, pieces = "", []
        rows = zip(chunk.tokens, chunk.logprobs, chunk.tempered, chunk.tops, strict=True)
        for token, logprob, tempered, top in rows:
            if self.finish is not None:
                break
            self.tokens.append(token)
            self.logprobs.append(tempered)
            addition, self.finish = self._words.take(token)
            text += addition
            pieces.append(self._piece(token, logprob, top))
        if chunk.ending is not None and self.finish is None:
            text += self._words.close()
            self.finish = chunk.ending
        return Delta(text=text, pieces=tuple(pieces)) if text or pieces else None

    def completion(self, version: int) -> Completion:
        """Return the finished reply."""
        assert self.finish is not None
        return Completion(
            reply=Message(role="assistant", content=self._words.text),
            prompt_tokens=tuple(self.prompt),
            reply_tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            sampling=self.sampling,
            finish=self.finish,
            version=version,
        )

    def _piece(self, token: int, logprob: float, top: TopLogprobs) -> Piece:
        best = top[: self.sampling.top_logprobs]
        alternatives = tuple(Alternative(token=t, text=self._text_of(t), logprob=value) for t, value in best)
        return Piece(token=token, text=self._text_of(token), logprob=logprob, top=alternatives)
