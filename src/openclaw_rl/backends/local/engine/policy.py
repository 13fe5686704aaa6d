"""The policy on this machine: the `Policy` port over a separate engine process.

The API's event loop only passes messages; `client` manages the process and its requests.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeAlias, cast

from openclaw_rl.backends.hf.guidance import can_constrain
from openclaw_rl.backends.hf.version_table import ScopedPolicy, VersionTable
from openclaw_rl.backends.local.engine.client import EngineClient
from openclaw_rl.backends.local.engine.messages import (
    AdmitRequest,
    DecodeRequest,
    DismissRequest,
    EncodeRequest,
    EngineArgs,
    Finished,
    GenerateRequest,
    LoadRequest,
    RegisterVersions,
    ScoreRequest,
    TokenDelta,
    TokenizeRequest,
)
from openclaw_rl.errors import RequestError
from openclaw_rl.ports import Ability, Delta, Policy, Scores, Stream
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Tokens, Version

logger = logging.getLogger(__name__)

_CONSTRAINED: frozenset[Ability] = frozenset({"opening", "json_schema", "strict_tools"})
_Deltas: TypeAlias = AsyncGenerator[Delta | Completion, None]


class LocalPolicy:
    """A `Policy` on this machine's CPU or GPU. ``name``, ``base``, ``context`` and ``tool_format`` are set by `start`.

    Formats are enforced during decoding (`constraint`) if the package for it is installed.
    """

    def __init__(self, args: EngineArgs, *, progress: Callable[[str], None] | None = None) -> None:
        self.name = args.name or args.model
        self.base = ""
        self.context = args.context or 0
        self.tool_format = args.tool_format or "none"
        self.abilities: frozenset[Ability] = _CONSTRAINED if can_constrain() else frozenset({"opening"})
        self._versions = VersionTable()
        self._engine = EngineClient(
            args, self._versions, progress or (lambda text: logger.info("engine.progress %s", text))
        )

    @property
    def live(self) -> int:
        """The version that serves new requests."""
        return self._versions.live

    @property
    def health(self) -> dict[str, Any]:
        """The engine's state, process, crashes and current load."""
        return self._engine.health

    @property
    def runner(self) -> str | None:
        """The model runner's description, with the reason if it is not the usual runner; None before `start`."""
        runner: str | None = self.health["runner"]
        return runner

    @property
    def outage(self) -> str | None:
        """Return the reason if the engine is down or silent; None while it answers or restarts after a crash."""
        return self._engine.outage

    async def start(self) -> None:
        """Start the engine process and load the model; raise `ModelRefused` with the numbers and the remedy."""
        if self._engine.state != "stopped":
            return
        facts = await self._engine.start()
        self.name, self.base, self.context, self.tool_format = facts.name, facts.base, facts.context, facts.tool_format

    async def stop(self) -> None:
        """End the engine process. Safe to call twice."""
        await self._engine.stop()

    def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None, scope: str = "") -> Stream:
        """Stream a reply of ``version`` (None: the live version). Closing the stream early stops generation."""
        if sampling.dry_multiplier and (prompt.tools or sampling.json_schema is not None):
            # calls and JSON repeat names for good reason
            sampling = replace(sampling, dry_multiplier=0.0)
        return self._generate(prompt, sampling, version, scope)

    def scoped(self, scope: str) -> Policy:
        """Return the policy for one scope, whose prefix cache is separate, so that other scopes cannot probe its
        contents."""
        return cast(Policy, ScopedPolicy(self, scope)) if scope else self

    async def encode(self, prompt: Prompt) -> Tokens:
        """Return the prompt's ids through the chat template, ready for a reply."""
        return cast(Tokens, await self._engine.call(lambda id: EncodeRequest(id, prompt)))

    async def tokenize(self, text: str) -> Tokens:
        """Encode a reply's bare text and the end-of-turn token."""
        return cast(Tokens, await self._engine.call(lambda id: TokenizeRequest(id, text)))

    async def decode(self, tokens: Tokens) -> str:
        """Decode ids to text, including special tokens."""
        return cast(str, await self._engine.call(lambda id: DecodeRequest(id, tokens)))

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        """Return a given reply's log-probs after given prompt ids; ``version`` 0 is the base model."""
        if not reply:
            return Scores(logprobs=())
        number = self._number(version)
        request = await self._engine.call(lambda id: ScoreRequest(id, prompt, reply, number, temperature, top_k))
        return cast(Scores, request)

    async def load(self, version: Version) -> None:
        """Load ``version`` beside the running one and make it live. Requests in flight keep their version.

        If the engine is down, restart it with ``version``.
        """
        self.know(version)
        if self._engine.state == "down":
            await self._engine.restart(version.number)
        else:
            await self._engine.call(lambda id: LoadRequest(id, version.number))
            self._versions.live = version.number
        self._versions.loaded(version.number)

    async def admit(self, version: Version) -> None:
        """Load ``version`` beside the live one and keep it loaded until `dismiss`; its requests yield to users'
        requests."""
        self.know(version)
        await self._engine.call(lambda id: AdmitRequest(id, version.number))

    async def dismiss(self, number: int) -> None:
        """Unload an admitted version, unless it is live."""
        self._engine.notify(DismissRequest(number))

    def know(self, version: Version) -> None:
        """Register ``version`` by number without making it live; its first request loads it."""
        self._versions.know(version)
        self._engine.notify(RegisterVersions({version.number: version.adapter}))

    async def _generate(self, prompt: Prompt, sampling: Sampling, version: int | None, scope: str) -> _Deltas:
        chosen = self._number(version)
        was_live = chosen == self.live

        def request(id: int) -> GenerateRequest:
            # if the live version cannot be loaded, its replacement answers the request
            number = self.live if was_live and chosen in self._versions.unloadable else chosen
            return GenerateRequest(id, prompt, sampling, number, scope)

        events = self._engine.stream(request)
        try:
            async for event in events:
                yield event.delta if isinstance(event, TokenDelta) else _completion(event, sampling)
        finally:
            await events.aclose()

    def _number(self, version: int | None) -> int:
        number = self.live if version is None else version
        if number not in self._versions.adapters:
            names = self._versions.names()
            raise RequestError(f"no version {number} of {self.name}; known: {names}", field="model", status=404)
        return number


def _completion(done: Finished, sampling: Sampling) -> Completion:
    return Completion(
        reply=Message(role="assistant", content=done.text),
        prompt_tokens=done.prompt,
        reply_tokens=done.tokens,
        logprobs=done.logprobs,
        allowed=done.allowed,
        sampling=sampling,
        finish=done.finish,
        version=done.version,
    )


@wraps(EngineArgs, assigned=(), updated=())
def local_policy(**settings: Any) -> LocalPolicy:
    """Build the policy of ``policy.backend = "local"`` from the settings that `EngineArgs` declares."""
    return LocalPolicy(EngineArgs(**settings))
