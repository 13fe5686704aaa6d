"""Models under evaluation: a run's version, weights by name, or any OpenAI-compatible server.

async with open_model(config, "3") as model: ...     also "live", a version's folder, a folder of weights,
                                                     a Hugging Face id, a GGUF file, an address
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openclaw_rl.app.application import ledger_place
from openclaw_rl.app.factories import default_sampling, running_policy
from openclaw_rl.config import Config, key_in
from openclaw_rl.envs import sandbox
from openclaw_rl.errors import NoSandbox, NotInLedger
from openclaw_rl.evals import suites
from openclaw_rl.evals.suites import CONCURRENCY, Model, ModelReply
from openclaw_rl.formats.parts import Assembly
from openclaw_rl.formats.tools import tool_call_reader
from openclaw_rl.gate.checks import flaw, plain
from openclaw_rl.gate.examiner import answer
from openclaw_rl.ports import Policy, SupportsCandidates, SupportsVersions
from openclaw_rl.stats import difference, wilson
from openclaw_rl.store import LedgerReader
from openclaw_rl.tasks.everyday import Task, held_out, is_relevant
from openclaw_rl.tasks.preferences import PREFERENCES
from openclaw_rl.text import word_count
from openclaw_rl.types import Prompt, Sampling, Version
from openclaw_rl.versions import LiveVersions, checkpoints

# Pairwise comparison: two versions on the same prompts, side by side, with program-checked rates.


def choose_tasks(prompts: Sequence[str], *, count: int, seed: int) -> list[Task]:
    """Return the given prompts as tasks; without any, ``count`` held-out ones sampled by the seed."""
    if prompts:
        return [Task(prompt=prompt, mentions=(), about="everyday") for prompt in prompts]
    return random.Random(seed).sample(held_out(), count)


async def sample_replies(model: Model, tasks: Sequence[Task], *, sampling: Sampling, seed: int) -> list[str]:
    """Return one reply per task, each with its own seed, the same for every model."""
    room = asyncio.Semaphore(CONCURRENCY)

    async def one(number: int, task: Task) -> str:
        async with room:
            return (await model(plain(task.prompt), replace(sampling, seed=seed * 1000 + number))).text

    return list(await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks))))


def report(tasks: Sequence[Task], versions: Sequence[int], replies: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return plain JSON: each prompt with both replies, and each measure as two rates and their paired difference."""
    first, second = replies
    measures = {
        "sound": [
            [flaw(reply, prompt=task.prompt) is None for task, reply in zip(tasks, texts, strict=True)]
            for texts in replies
        ]
    }
    if all(task.mentions for task in tasks):
        measures["names what was asked about"] = [
            [is_relevant(task, reply) for task, reply in zip(tasks, texts, strict=True)] for texts in replies
        ]
    for preference in PREFERENCES.values():
        measures[f"meets {preference.name}"] = [[preference.met_by(reply) for reply in texts] for texts in replies]
    return {
        "versions": list(versions),
        "replies": [
            {"prompt": task.prompt, "first": first_reply, "second": second_reply}
            for task, first_reply, second_reply in zip(tasks, first, second, strict=True)
        ],
        "words": [round(sum(map(word_count, texts)) / max(len(texts), 1), 1) for texts in replies],
        "rates": {name: _rates(*met) for name, met in measures.items()},
    }


def _rates(first: Sequence[bool], second: Sequence[bool]) -> dict[str, Any]:
    gap = difference(first, second)
    return {
        "first": {"held": sum(first), "of": len(first), "interval": _interval(first)},
        "second": {"held": sum(second), "of": len(second), "interval": _interval(second)},
        "difference": round(gap.mean, 3),
        "low": round(gap.low, 3),
        "high": round(gap.high, 3),
    }


def _interval(met: Sequence[bool]) -> list[float]:
    return [round(end, 3) for end in wilson(sum(met), len(met))]


def lines(found: dict[str, Any], *, width: int = 100) -> Iterator[str]:
    """Format the report for a terminal: replies side by side, then the rates."""
    first_version, second_version = found["versions"]
    for row in found["replies"]:
        yield f"{row['prompt']}"
        yield f"  version {first_version:<3} {_cut(row['first'], width)}"
        yield f"  version {second_version:<3} {_cut(row['second'], width)}"
    yield f"{'':<28} {f'version {first_version}':>12} {f'version {second_version}':>12}   difference (95 % interval)"
    yield f"{'words a reply':<28} {found['words'][0]:>12} {found['words'][1]:>12}"
    for name, rate in found["rates"].items():
        first, second = (f"{rate[side]['held']} of {rate[side]['of']}" for side in ("first", "second"))
        gap = f"{rate['difference']:+.2f} ({rate['low']:+.2f} to {rate['high']:+.2f})"
        yield f"{name:<28} {first:>12} {second:>12}   {gap}"


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


PATIENCE = 600.0
"""time limit of a server for one reply, in seconds"""


@contextlib.asynccontextmanager
async def open_model(config: Config, name: str, *, key_env: str | None = None) -> AsyncIterator[Model]:
    """Open the named model for the length of a block; raise NotInLedger for an unknown version."""
    if name.startswith(("http://", "https://")):
        async with _server(name, key_in(key_env) if key_env else None) as model:
            yield model
        return
    numbered = _version(config, name)
    version = numbered or _checkpoint(name)
    weights = config.policy.model if numbered else version.base if version else name
    section = config.policy.model_copy(update={"model": weights})
    async with running_policy(config.model_copy(update={"policy": section})) as policy:
        yield _of(policy, await _loaded(policy, version) if version is not None else 0)


def _version(config: Config, name: str) -> Version | None:
    """Return the version that a number or "live" names; None for a name of weights."""
    if name != "live" and not name.isdecimal():
        return None
    with LedgerReader(ledger_place(config)) as ledger:
        versions = LiveVersions(ledger)
        version = versions.live() if name == "live" else versions.kept(int(name))
    if version is None:
        raise NotInLedger("no version is live yet", remedy="start 'openclaw-rl up' first")
    return version


def _checkpoint(name: str) -> Version | None:
    """Return the version in a version folder, of this run or another; None for a name of weights."""
    folder = Path(name).expanduser().absolute()
    base = checkpoints.base_of(folder)
    return None if base is None else Version(number=1, parent=0, base=base, adapter=str(folder.resolve()))


async def _loaded(policy: Policy, version: Version) -> int:
    if isinstance(policy, SupportsCandidates):
        await policy.admit(version)
    elif isinstance(policy, SupportsVersions):
        policy.know(version)
    else:
        await policy.load(version)
    return version.number


def _of(policy: Policy, number: int) -> Model:
    async def model(prompt: Prompt, sampling: Sampling) -> ModelReply:
        completion = await answer(policy, prompt, sampling, version=number)
        if not prompt.tools:
            return ModelReply(text=completion.reply.content)
        return read_calls(completion.reply.content, policy.tool_format, cut=completion.finish == "length")

    return model


def read_calls(raw: str, tool_format: str, *, cut: bool) -> ModelReply:
    """Return text and calls of a raw reply, as the API would return them."""
    reader, assembly = tool_call_reader(tool_format), Assembly()
    for part in (*reader.feed(raw), *reader.end(cut=cut)):
        assembly.add(part)
    message = assembly.message()
    return ModelReply(text=message.content, calls=message.tool_calls, broken=bool(reader.flaws))


# --- servers ---


@contextlib.asynccontextmanager
async def _server(address: str, key: str | None) -> AsyncIterator[Model]:
    from openclaw_rl.clients.api import ApiClient

    async with ApiClient(address, key=key, key_remedy="see --api-key-env", timeout=PATIENCE) as client:
        name = (await client.models())[0].name

        async def model(prompt: Prompt, sampling: Sampling) -> ModelReply:
            options = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature, "seed": sampling.seed}
            reply = await client.complete(prompt, train=False, notes=False, options={"model": name, **options})
            return ModelReply(text=reply.text, calls=reply.message.tool_calls)

        yield model


# --- commands ---


async def evaluate(
    config: Config,
    name: str,
    *,
    against: str | None = None,
    seed: int = 0,
    temperature: float = 0.0,
    key_env: str | None = None,
    unsafe: bool = False,
    done: Callable[[suites.TaskResult], None] = lambda _: None,
) -> dict[str, Any]:
    """Run the suites of ``eval.tasks`` on one model, or on two and compare them; plain JSON.

    ``unsafe``: see `sandbox`.
    """
    began = time.monotonic()
    way = await asyncio.to_thread(_isolation, unsafe=unsafe) if "coding" in config.eval.tasks else None
    results = []
    for model_name in (name, *([against] if against else [])):
        async with open_model(config, model_name, key_env=key_env) as model:
            run = suites.run(model, config.eval.tasks, seed=seed, temperature=temperature, unsafe=unsafe, done=done)
            results.append(await run)
    view = suites.report(name, results[0], seed=seed, began=began, isolation=way)
    if against is None:
        return view
    other_view = suites.report(against, results[1], seed=seed, began=began, isolation=way)
    return {**view, "against": other_view, "compared": suites.compare(*results)}


def _isolation(*, unsafe: bool) -> sandbox.Isolation:
    """Return the isolation between programs; raise NoSandbox before any model is loaded."""
    try:
        return sandbox.isolation(unsafe=unsafe)
    except NoSandbox as error:
        ways = "leave 'coding' out of --eval-tasks, or run the programs as this user with --unsafe-no-sandbox"
        raise NoSandbox(error.what, remedy=f"{error.remedy}; or {ways}") from error


async def compare(
    config: Config, names: tuple[str, str], *, prompts: Sequence[str], count: int, tokens: int, seed: int
) -> dict[str, Any]:
    """Answer the same prompts with two versions, side by side, with program-checked rates."""
    tasks = choose_tasks(prompts, count=count, seed=seed)
    sampling = replace(default_sampling(config), max_tokens=tokens)
    versions = [_version(config, name) for name in names]
    async with running_policy(config) as policy:
        replies = []
        for name, version in zip(names, versions, strict=True):
            if version is None:
                raise NotInLedger(f"{name!r} is no version", remedy="'openclaw-rl versions' lists them")
            model = _of(policy, await _loaded(policy, version))
            replies.append(await sample_replies(model, tasks, sampling=sampling, seed=seed))
    numbers = tuple(version.number for version in versions if version is not None)
    return report(tasks, numbers, replies)


async def answer_again(config: Config, turn: str, *, seed: int = 0) -> dict[str, Any]:
    """Answer a turn's prompt with the live version now, without recording anything."""
    version = _version(config, "live")
    assert version is not None
    with LedgerReader(ledger_place(config)) as ledger:
        past = ledger.turn(turn)
    sampling = past.completion.sampling
    async with running_policy(config) as policy:
        number = await _loaded(policy, version)
        most = sampling.max_tokens or config.policy.sampling.max_tokens or 256
        completion = await answer(policy, past.prompt, replace(sampling, max_tokens=most, seed=seed), version=number)
    return {"version": number, "reply": completion.reply.content, "from": "asked now"}
