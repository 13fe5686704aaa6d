"""A policy and a trainer without weights, for small tests, examples and benchmarks.

The fake policy's tokens are bytes: token id = byte, 256 ends a turn. It echoes the user, then the rules it has learned,
so each reply shows which rules a version contains. The fake trainer adds each hint it receives to them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from openclaw_rl import files
from openclaw_rl.errors import ContextOverflow, ModelRefused, RequestError
from openclaw_rl.ports import Alternative, Delta, Piece, Scores, StepResult, Stream
from openclaw_rl.types import Completion, Json, Message, Prompt, Sample, Sampling, Tokens, Version, texts

END = 256
ROLE = {"system": 257, "user": 258, "assistant": 259, "tool": 260}
ADAPTER = "learned.json"

ReplyFunction = Callable[[Prompt, Sequence[str]], str]


def echo(prompt: Prompt, rules: Sequence[str]) -> str:
    """Return the default reply: the user's last message, then the learned rules."""
    last = (texts(prompt.messages, "user") or ("nothing",))[-1]
    return f"You said: {last}" + "".join(f" [learned: {rule}]" for rule in rules)


def logprob(token: int, position: int) -> float:
    """Return a synthetic log-prob, exact in single precision and equal for all versions, which differ in text only."""
    return -((token * 31 + position * 17) % 64) / 32


class FakePolicy:
    """A `Policy` that answers with a function's result, at once or at a fixed speed."""

    tool_format = "hermes"

    def __init__(
        self,
        *,
        name: str = "fake",
        context: int | None = None,
        answer: ReplyFunction = echo,
        reply: str | None = None,
        tokens_per_second: float | None = None,
        chunk: int = 4,
    ) -> None:
        self.name = name
        self.base = "fake"
        self.context = context or 65536
        self._answer: ReplyFunction = answer if reply is None else lambda _prompt, _rules: reply
        self._pause = chunk / tokens_per_second if tokens_per_second else None
        self._chunk = chunk
        self._adapters: dict[int, str | None] = {0: None}
        self._rules: dict[int, tuple[str, ...]] = {}
        self._live = 0

    @property
    def live(self) -> int:
        return self._live

    async def start(self) -> None:
        """No setup is needed."""

    async def stop(self) -> None:
        """No cleanup is needed."""

    async def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        number = self._live if version is None else version
        rules = self._known(number)
        prompt_ids = await self.encode(prompt)
        ids = (*self._answer(prompt, rules).encode(), END)
        room = self.context - len(prompt_ids)
        if room < 1 or (sampling.max_tokens or 1) > room:
            raise ContextOverflow(limit=self.context, asked=len(prompt_ids) + (sampling.max_tokens or 1))
        limit = min(room, sampling.max_tokens or room)
        reply_ids = ids[:limit]
        for at in range(0, len(reply_ids), self._chunk):
            if self._pause:
                await asyncio.sleep(self._pause)
            part = reply_ids[at : at + self._chunk]
            pieces = tuple(self._piece(token, at + i, sampling.top_logprobs) for i, token in enumerate(part))
            yield Delta(text=_text(part), pieces=pieces)
        yield Completion(
            reply=Message(role="assistant", content=_text(reply_ids)),
            prompt_tokens=prompt_ids,
            reply_tokens=reply_ids,
            logprobs=tuple(logprob(token, i) for i, token in enumerate(reply_ids)),
            sampling=sampling,
            finish="stop" if len(reply_ids) == len(ids) else "length",
            version=number,
        )

    def _piece(self, token: int, position: int, top: int) -> Piece:
        alternatives = tuple(
            Alternative(token=t, text=chr(t), logprob=logprob(t, position)) for t in range(97, 97 + top)
        )
        return Piece(token=token, text=_text((token,)), logprob=logprob(token, position), top=alternatives)

    def _known(self, version: int) -> tuple[str, ...]:
        if version not in self._adapters:
            raise RequestError(f"no version {version}; known: {sorted(self._adapters)}", field="model", status=404)
        if version not in self._rules:
            adapter = self._adapters[version]
            if adapter is not None and not Path(adapter).is_dir():
                raise RequestError(f"the weights of version {version} are no longer kept", field="model", status=404)
            self._rules[version] = read_rules(adapter) if adapter else ()
        return self._rules[version]

    async def encode(self, prompt: Prompt) -> Tokens:
        ids: list[int] = []
        for message in prompt.messages:
            calls = "".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
            ids += [ROLE[message.role], *f"{message.content}{calls}".encode(), END]
        return (*ids, ROLE["assistant"])

    async def tokenize(self, text: str) -> Tokens:
        return (*text.encode(), END)

    async def decode(self, tokens: Tokens) -> str:
        return _text(tokens)

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        return Scores(
            logprobs=tuple(logprob(token, i) for i, token in enumerate(reply)),
            top_tokens=tuple(tuple(range(top_k)) for _ in reply),
            top_logprobs=tuple(tuple(logprob(t, i) for t in range(top_k)) for i in range(len(reply))),
        )

    def know(self, version: Version) -> None:
        """Register ``version``, so that a request can name its number."""
        self._adapters[version.number] = version.adapter

    async def admit(self, version: Version) -> None:
        """Read ``version`` beside the live one; raise ModelRefused if its rules cannot be read."""
        self.know(version)
        try:
            self._known(version.number)
        except (OSError, ValueError, KeyError) as error:
            raise ModelRefused(f"{version.adapter} is damaged: {type(error).__name__}: {error}") from error

    async def dismiss(self, number: int) -> None:
        """Nothing to release."""

    async def load(self, version: Version) -> None:
        self.know(version)
        self._known(version.number)
        self._live = version.number


class FakeTrainer:
    """A `Trainer` that stores each hint as a rule and changes nothing else."""

    def __init__(self, *, seconds: float = 0.0) -> None:
        self._seconds = seconds

    async def start(self) -> None:
        """No setup is needed."""

    async def stop(self) -> None:
        """No cleanup is needed."""

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        began = time.monotonic()
        if self._seconds:
            await asyncio.sleep(self._seconds)
        old = read_rules(parent.adapter) if parent.adapter else ()
        new = [hint for sample in samples for teacher in sample.teachers if (hint := _hint(sample, teacher))]
        turns = (*(read_turns(parent.adapter) if parent.adapter else ()), *(sample.turn for sample in samples))
        manifest = {"base": parent.base, "parent": parent.number, "step": number}
        write_adapter(target, rules=tuple(dict.fromkeys((*old, *new))), turns=turns, manifest=manifest)
        scalar = [sample.advantage for sample in samples if sample.advantage is not None]
        return StepResult(
            adapter=target,
            metrics={"samples": float(len(samples)), "advantage": sum(scalar) / len(scalar) if scalar else 0.0},
            seconds=time.monotonic() - began,
        )


def _hint(sample: Sample, teacher: Prompt) -> str:
    plain = (texts(sample.prompt.messages, "user") or ("",))[-1]
    return texts(teacher.messages, "user")[-1].removeprefix(plain).strip()


def _text(ids: Sequence[int]) -> str:
    return bytes(token for token in ids if token < END).decode(errors="replace")


def read_rules(adapter: str) -> tuple[str, ...]:
    """Return the rules in the adapter in this directory."""
    return tuple(json.loads((Path(adapter) / ADAPTER).read_text())["rules"])


def read_turns(adapter: str) -> tuple[str, ...]:
    """Return every turn that these weights were trained on, in order; a turn trained twice appears twice."""
    return tuple(json.loads((Path(adapter) / ADAPTER).read_text())["turns"])


def write_adapter(target: str, *, rules: Sequence[str], turns: Sequence[str], manifest: Mapping[str, Json]) -> None:
    """Write an adapter atomically."""
    with files.directory(Path(target)) as draft:
        (draft / ADAPTER).write_text(json.dumps({"rules": list(rules), "turns": list(turns)}, ensure_ascii=False))
        (draft / "manifest.json").write_text(json.dumps({"format": 1, **manifest}))
