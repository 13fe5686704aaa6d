"""Checks for an engine from outside, before it is used: for `openclaw-rl doctor`."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from openclaw_rl.backends.engines.dialect import Dialect, EngineFacts, too_old
from openclaw_rl.backends.engines.http import ConnectionLost, EngineHttp
from openclaw_rl.ports import EngineFinding

_PROBES: Final = ("The cat's 3 naïve cafés.\n\n\tfor i in range(10):  # 数 🙂", "  two  spaces\r\nand <|a tag|> <b>")
_NOWHERE: Final = "/openclaw-rl/no/such/adapter"
_TOO_HIGH: Final = re.compile(r"greater than max_lora_rank (\d+)")
_VERSION: Final = (
    "import importlib.metadata as m, sys\n"
    "print(next((d.version for d in m.distributions() if d.metadata['Name'] in sys.argv[1:]), ''))"
)


async def examine_running(
    http: EngineHttp,
    dialect: Dialect,
    facts: EngineFacts,
    *,
    encode: Callable[[str], list[int]],
    rank: int | None,
    turns: bool,
    folder: Path,
) -> list[EngineFinding]:
    """Check a running engine: its release, its adapters, its tokenizer, its network exposure.

    ``rank`` is the adapters' rank, None if versions are whole models; ``turns`` is True if the engine must sleep during
    training; ``folder`` is visible to the engine.
    """
    findings = [EngineFinding(fine=True, what=f"{dialect.name} {facts.version} serves {facts.model} at {http.url}")]
    if rank is None:
        findings.append(await _reads_weights(http, dialect))
    else:
        loads = await _adapters(http, dialect)
        findings += [loads, await _rank(http, dialect, facts, rank, folder)] if loads.fine else [loads]
    if turns:
        findings.append(await _sleeps(http, dialect, facts))
    findings.append(await _tokenizer(http, facts, encode))
    if not _is_loopback(http.url):
        what = f"{http.url} is not on loopback, and its key does not guard every route that changes it"
        findings.append(
            EngineFinding(fine=False, what=what, remedy="start it with --host 127.0.0.1, or behind a firewall")
        )
    return findings


async def _controllable(http: EngineHttp, dialect: Dialect) -> bool:
    """Return True if the engine has the routes for reloading weights and sleeping."""
    return dialect.control_path is None or (await http.get(dialect.control_path)).status == 200


async def _reads_weights(http: EngineHttp, dialect: Dialect) -> EngineFinding:
    if await _controllable(http, dialect):
        return EngineFinding(fine=True, what="it reads whole models from disk while it runs")
    what = "it does not read whole models while it runs, and train.lora.enabled is off"
    return EngineFinding(fine=False, what=what, remedy=dialect.reload_remedy)


async def _sleeps(http: EngineHttp, dialect: Dialect, facts: EngineFacts) -> EngineFinding:
    if facts.sleeps is not False and await _controllable(http, dialect):
        return EngineFinding(fine=True, what="it can be put to sleep")
    what = "it cannot be put to sleep, and gpus.turns is on"
    return EngineFinding(fine=False, what=what, remedy=dialect.sleep_remedy)


async def _adapters(http: EngineHttp, dialect: Dialect) -> EngineFinding:
    """Request a missing adapter: an engine that can load adapters complains about the path."""
    answer = await http.post(*dialect.load_request("openclaw-doctor", _NOWHERE), seconds=60)
    words = dialect.loaded(answer) or ""
    if _NOWHERE in words or "no adapter found" in words.lower():
        return EngineFinding(fine=True, what="it loads adapters while it runs")
    remedy = "start it with LoRA on and loading allowed, as docs/engines.md says"
    return EngineFinding(fine=False, what=f"it does not load adapters: {words or answer.status}", remedy=remedy)


async def _rank(http: EngineHttp, dialect: Dialect, facts: EngineFacts, rank: int, folder: Path) -> EngineFinding:
    """Read the engine's rank limit, or request an adapter of this rank without weights to get an error with it."""
    limit = facts.lora_rank
    if limit is None:
        parent = folder if await asyncio.to_thread(folder.is_dir) else None
        with tempfile.TemporaryDirectory(dir=parent, prefix="doctor-") as place:
            await asyncio.to_thread(_write_settings, Path(place), rank)
            answer = await http.post(*dialect.load_request("openclaw-doctor", place), seconds=60)
        match = _TOO_HIGH.search(dialect.loaded(answer) or "")
        limit = int(match[1]) if match else rank
    if limit >= rank:
        return EngineFinding(fine=True, what=f"it takes adapters of rank {rank}")
    what = f"it takes adapters up to rank {limit}, and train.lora.rank is {rank}"
    remedy = f"start it with --max-lora-rank {rank}, or set train.lora.rank = {limit}"
    return EngineFinding(fine=False, what=what, remedy=remedy)


def _write_settings(folder: Path, rank: int) -> None:
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


async def _tokenizer(http: EngineHttp, facts: EngineFacts, encode: Callable[[str], list[int]]) -> EngineFinding:
    for text in _PROBES:
        body = {"model": facts.model, "prompt": text, "add_special_tokens": False}
        answer = await http.post("/tokenize", body, seconds=60)
        content = answer.json()
        if answer.status != 200 or not isinstance(content, dict) or "tokens" not in content:
            return EngineFinding(fine=True, what="its tokenizer cannot be checked")
        if list(content["tokens"]) != encode(text):
            what = f"its tokenizer is not that of policy.model: {text!r} is {content['tokens']}, not {encode(text)}"
            return EngineFinding(fine=False, what=what, remedy="set policy.model to the model that the engine serves")
    return EngineFinding(fine=True, what="its tokenizer is that of policy.model")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def examine_environment(python: str, dialect: Dialect) -> EngineFinding:
    """Check if the package of an engine that will be started is installed in ``python``'s environment."""
    names = (dialect.package, f"{dialect.package}-cpu")
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", _VERSION, *names, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        version = (await process.communicate())[0].decode().strip()
    except OSError as error:
        return EngineFinding(fine=False, what=f"{python} does not run: {error}", remedy="correct policy.engine_python")
    if old := too_old(dialect, version):
        return EngineFinding(fine=False, what=f"{old}, for {python}", remedy="install a newer release there")
    if version:
        return EngineFinding(fine=True, what=f"{dialect.name} {version} will be started by {python}")
    remedy = "install it there, or name another Python with --engine-python"
    return EngineFinding(fine=False, what=f"{python} has no package {dialect.package}", remedy=remedy)


async def unreachable(http: EngineHttp, dialect: Dialect) -> EngineFinding | None:
    """Return the reason why the engine cannot be examined; None if it answers."""
    remedy = "start it, or correct policy.url"
    try:
        answer = await http.get(dialect.health_path)
    except ConnectionLost as error:
        return EngineFinding(fine=False, what=error.what, remedy=remedy)
    if answer.status != 200:
        return EngineFinding(fine=False, what=f"{http.url} answers {answer.status}", remedy=remedy)
    return None
