"""A reply as it comes from an engine: tokens and log-probs in, deltas and a completion out."""

from __future__ import annotations

from openclaw_rl.backends.hf.detokenizer import ReplyText
from openclaw_rl.backends.hf.prompts import PromptEncoder
from openclaw_rl.backends.hf.token_chunks import TokenChunk, TopLogprobs
from openclaw_rl.ports import Alternative, Delta, Piece
from openclaw_rl.types import Completion, Finish, Message, Sampling, Tokens


class Reply:
    """One reply. ``prompt`` is what it answers; empty until the engine says it, where the engine made it."""

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
        """What was shown of it."""
        return self._words.text

    @property
    def left(self) -> int:
        """Tokens that may still come."""
        return self._limit - len(self.tokens)

    def take(self, chunk: TokenChunk) -> Delta | None:
        """What a chunk adds; None where it adds nothing. Tokens after the end are not taken."""
        if chunk.prompt is not None and not self.prompt:
            self.prompt = chunk.prompt
        shown, pieces = "", []
        rows = zip(chunk.tokens, chunk.logprobs, chunk.tempered, chunk.tops, strict=True)
        for token, logprob, tempered, top in rows:
            if self.finish is not None:
                break
            self.tokens.append(token)
            self.logprobs.append(tempered)
            more, self.finish = self._words.take(token)
            shown += more
            pieces.append(self._piece(token, logprob, top))
        if chunk.ending is not None and self.finish is None:
            shown += self._words.close()
            self.finish = chunk.ending
        return Delta(text=shown, pieces=tuple(pieces)) if shown or pieces else None

    def completion(self, version: int) -> Completion:
        """The finished reply."""
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
        wanted = top[: self.sampling.top_logprobs]
        others = tuple(Alternative(token=t, text=self._text_of(t), logprob=value) for t, value in wanted)
        return Piece(token=token, text=self._text_of(token), logprob=logprob, top=others)
