"""Common parts of remote policies: text and ids are converted here, replies are scored remotely."""

from __future__ import annotations

from abc import ABC, abstractmethod

from openclaw_rl.backends.hf.detokenizer import WIDE, TopLogprobs, scores_at
from openclaw_rl.backends.hf.prompts import PromptEncoder
from openclaw_rl.backends.hf.version_table import VersionTable
from openclaw_rl.errors import ContextOverflow, RequestError
from openclaw_rl.ports import Scores
from openclaw_rl.types import Prompt, Sampling, Tokens


class RemotePolicy(ABC):
    """The half of the policy port that needs an encoder, a version table, and a remote scorer."""

    name: str
    context: int
    _versions: VersionTable

    @property
    def live(self) -> int:
        """The version that answers by default."""
        return self._versions.live

    async def encode(self, prompt: Prompt) -> Tokens:
        """Return the prompt's ids through the chat template, ready for a reply."""
        return await self._encoder().encode(prompt)

    async def tokenize(self, text: str) -> Tokens:
        """Encode a reply's bare text and the end-of-turn token."""
        return await self._encoder().tokenize(text)

    async def decode(self, tokens: Tokens) -> str:
        """Decode ids to text, including special tokens."""
        return self._encoder().decode(tokens)

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        """Return a given reply's log-probs after given prompt ids; ``version`` 0 is the base model."""
        if not reply:
            return Scores(logprobs=())
        wide = top_k if temperature in (0.0, 1.0) else max(top_k, WIDE)
        values, tops = await self._scored(prompt, reply, self._number(version), wide)
        return scores_at(values, tops, temperature=temperature, top_k=top_k)

    def _number(self, version: int | None) -> int:
        """Return the requested version's number; None means the live version."""
        number = self.live if version is None else version
        if number not in self._versions.adapters:
            names = self._versions.names()
            raise RequestError(f"no version {number} of {self.name}; known: {names}", field="model", status=404)
        return number

    def _limit(self, prompt: int, sampling: Sampling) -> int:
        """Return the largest number of reply tokens after ``prompt`` tokens."""
        room = self.context - prompt
        if room < 1 or (sampling.max_tokens or 1) > room:
            raise ContextOverflow(limit=self.context, asked=prompt + (sampling.max_tokens or 1))
        return min(room, sampling.max_tokens or room)

    @abstractmethod
    def _encoder(self) -> PromptEncoder:
        """Return the model's encoder; raise `BackendDown` before it is loaded."""

    @abstractmethod
    async def _scored(
        self, prompt: Tokens, reply: Tokens, number: int, top: int
    ) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
        """Return log-probs at temperature 1, and each token's ``top`` likeliest alternatives."""
