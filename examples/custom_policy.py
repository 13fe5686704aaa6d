"""A backend of your own, as small as it gets: a policy that answers with the user's words backwards.

    openclaw-rl up --set policy.backend=examples/custom_policy.py:Backwards --set train.backend=fake --model backwards

A backend streams text and ends with a `Completion`: the very token ids that were sampled and their log-probs. Here a
token is a byte, and 256 ends a turn. `load` takes up a version's adapter; this one has nothing to learn with.
"""

from __future__ import annotations

from openclaw_rl.errors import ContextOverflow
from openclaw_rl.ports import Delta, Scores, Stream
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Tokens, Version, texts

END = 256


class Backwards:
    """A `Policy`: see `openclaw_rl.ports` for what each method promises."""

    name = base = "backwards"
    context = 4096
    tool_format = "none"

    def __init__(self) -> None:
        self._live = 0

    @property
    def live(self) -> int:
        return self._live

    async def start(self) -> None:
        """Nothing to make ready."""

    async def stop(self) -> None:
        """Nothing to give back."""

    async def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        prompt_ids = await self.encode(prompt)
        whole = (*texts(prompt.messages, "user")[-1][::-1].encode(), END)
        room = min(self.context - len(prompt_ids), sampling.max_tokens or self.context)
        if room < 1:
            raise ContextOverflow(limit=self.context, asked=len(prompt_ids) + 1)
        ids = whole[:room]
        text = await self.decode(ids)
        yield Delta(text=text)
        yield Completion(
            reply=Message(role="assistant", content=text),
            prompt_tokens=prompt_ids,
            reply_tokens=ids,
            logprobs=(0.0,) * len(ids),  # it is certain of every token: probability 1
            sampling=sampling,
            finish="stop" if ids == whole else "length",
            version=self._live if version is None else version,
        )

    async def encode(self, prompt: Prompt) -> Tokens:
        return tuple(token for message in prompt.messages for token in (*message.content.encode(), END))

    async def tokenize(self, text: str) -> Tokens:
        return (*text.encode(), END)

    async def decode(self, tokens: Tokens) -> str:
        return bytes(token for token in tokens if token != END).decode(errors="replace")

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        return Scores(logprobs=(0.0,) * len(reply))

    async def load(self, version: Version) -> None:
        self._live = version.number
