"""Check that a policy, and a function between the API and it, fulfil their ports' contracts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from openclaw_rl.errors import ContextOverflow
from openclaw_rl.ports import Delta, Scores, Stream
from openclaw_rl.testing.checks.env import Promises
from openclaw_rl.testing.policies import ScriptedPolicy
from openclaw_rl.testing.rows import make_prompt
from openclaw_rl.types import Completion, Sampling

TOOL_FORMATS = ("hermes", "llama", "pythonic", "harmony", "none")


def check_policy(policy: Any) -> None:
    """Check a policy: start it, ask it in several ways, stop it.

    A stream is deltas and then one completion of the same text, with the prompt's own tokens and the requested version.
    A stream may be closed early, two may run at once, a prompt that can never fit raises ContextOverflow. A policy with
    the ability ``json_schema`` follows a schema, records log-probs as if the reply were unconstrained, and may report
    the probability that the format left at a token, which is at least the token's own.

    >>> from openclaw_rl.testing import FakePolicy
    >>> check_policy(FakePolicy())
    """
    promises = Promises("policy", policy)
    promises.report(_policy_keeps(promises, policy))


async def _policy_keeps(promises: Promises, policy: Any) -> None:
    await promises.tried("start()", policy.start())
    for field in ("name", "base"):
        promises.hold(isinstance(getattr(policy, field), str) and bool(getattr(policy, field)), f"{field!r} is empty")
    formats = ", ".join(TOOL_FORMATS)
    promises.hold(policy.tool_format in TOOL_FORMATS, f"tool_format is {policy.tool_format!r}; known: {formats}")
    promises.hold(isinstance(policy.live, int) and policy.live >= 0, f"live is {policy.live!r}, not a version's number")
    try:
        await _answers(promises, policy)
        await _holds_formats(promises, policy)
        await _refuses_what_never_fits(promises, policy)
    finally:
        await promises.closes("stop", policy.stop)


async def _answers(promises: Promises, policy: Any) -> None:
    prompts = [make_prompt("Tell me about tea"), make_prompt("Tell me about rain", "It is water.", "Shorter!")]
    short = Sampling(max_tokens=16)
    completions = await asyncio.gather(*(_stream_keeps(promises, policy.generate(p, short), short) for p in prompts))
    for prompt, completion in zip(prompts, completions, strict=True):
        if completion is not None:
            tokens = await promises.tried("encode(prompt)", policy.encode(prompt))
            promises.hold(
                completion.prompt_tokens == tuple(tokens or ()), "prompt_tokens are not those of encode(prompt)"
            )
            promises.hold(completion.version == policy.live, "a completion is not of the live version")
            await _scores(promises, policy, completion)
    base = await _stream_keeps(promises, policy.generate(prompts[0], short, version=0), short)
    promises.hold(base is None or base.version == 0, "version=0 is not answered by version 0, the base model")
    early = policy.generate(prompts[0], Sampling(max_tokens=512))
    await promises.tried("the first delta", anext(early))
    await promises.tried("closing a stream early", early.aclose())
    await _stream_keeps(promises, policy.generate(prompts[0], short), short)


_FORMATS = (({"type": "boolean"}, (True, False)), ({"enum": ["tea", "rain"]}, ("tea", "rain")))


async def _holds_formats(promises: Promises, policy: Any) -> None:
    if "json_schema" not in getattr(policy, "abilities", ()):
        return
    for schema, values in _FORMATS:
        sampling = Sampling(max_tokens=16, json_schema=schema)
        completion = await _stream_keeps(promises, policy.generate(make_prompt("Is tea a plant?"), sampling), sampling)
        if completion is None:
            continue
        fits = _value(completion.reply.content) in values
        promises.hold(fits, f"it holds replies to a schema, but {completion.reply.content!r} does not fit {schema}")
        for value, allowed in zip(completion.logprobs, completion.allowed or completion.logprobs, strict=True):
            promises.hold(value <= allowed + 1e-4, "a token has more probability than all that its format allowed")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _stream_keeps(promises: Promises, stream: Stream, sampling: Sampling) -> Completion | None:
    """Read a stream to its end; return its completion, None without one."""

    async def read() -> list[Delta | Completion]:
        return [item async for item in stream]

    items = await promises.tried("generate()", read())
    deltas = [item for item in items or () if isinstance(item, Delta)]
    if items is None or not items or not isinstance(items[-1], Completion):
        promises.hold(items is None, "a stream does not end with a Completion")
        return None
    promises.hold(len(items) == len(deltas) + 1, "a Completion is not the last of its stream")
    completion = items[-1]
    text, reply = "".join(delta.text for delta in deltas), completion.reply.content
    promises.hold(text == reply, f"the deltas contain {text!r}, the reply {reply!r}")
    tokens = tuple(piece.token for delta in deltas for piece in delta.pieces)
    promises.hold(tokens == completion.reply_tokens[: len(tokens)], "the pieces' tokens are not the reply's")
    promises.hold(completion.sampling == sampling, "a completion's sampling is not the one asked for")
    limit = sampling.max_tokens or len(completion.reply_tokens)
    promises.hold(len(completion.reply_tokens) <= limit, "a reply is longer than max_tokens")
    return completion


async def _scores(promises: Promises, policy: Any, completion: Completion) -> None:
    work = policy.score(completion.prompt_tokens, completion.reply_tokens, top_k=2)
    scores = await promises.tried("score()", work)
    if not isinstance(scores, Scores):
        promises.hold(scores is None, f"score() gives {type(scores).__name__}, not Scores")
        return
    count = len(completion.reply_tokens)
    promises.hold(len(scores.logprobs) == count, f"score() gives {len(scores.logprobs)} log-probs for {count} tokens")
    for name in ("top_tokens", "top_logprobs"):
        rows = getattr(scores, name)
        fine = not rows or [len(row) for row in rows] == [2] * count
        promises.hold(fine, f"score(top_k=2) gives {name}, but not two for each reply token")


async def _refuses_what_never_fits(promises: Promises, policy: Any) -> None:
    stream = policy.generate(make_prompt("tea " * (policy.context + 1)), Sampling(max_tokens=1))
    try:
        async for _ in stream:
            pass
    except ContextOverflow:
        return
    except Exception as error:  # any other error is wrong
        promises.hold(False, f"a prompt over the context raises {type(error).__name__}, not ContextOverflow")
        return
    promises.hold(False, "a prompt over the context is answered; raise ContextOverflow")


def check_generate(generate: Any) -> None:
    """Check a function between the API and the policy: its stream fulfils a policy's contract, with the right version.

    >>> def straight(policy, prompt, sampling, *, version):
    ...     return policy.generate(prompt, sampling, version=version)
    >>> check_generate(straight)
    """
    promises = Promises("generate", generate)
    promises.report(_generate_keeps(promises, generate))


async def _generate_keeps(promises: Promises, generate: Callable[..., Stream]) -> None:
    policy, sampling = ScriptedPolicy("Tea is a plant."), Sampling(max_tokens=64)
    for version, expected in ((None, policy.live), (0, 0)):
        stream = generate(policy, make_prompt("Tell me about tea"), sampling, version=version)
        completion = await _stream_keeps(promises, stream, sampling)
        fine = completion is None or completion.version == expected
        promises.hold(fine, f"version={version} is not answered by version {expected}")
