"""Checks for settings that cannot work, before anything listens and in `doctor`. Each fault has a remedy."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from openclaw_rl import plugins
from openclaw_rl.app.devices import gpu_layout, refuse_useless_turns, trainer_devices, visible_gpus
from openclaw_rl.app.factories import loss_config
from openclaw_rl.config import SETTINGS, Config
from openclaw_rl.errors import ConfigError, MissingExtra, ModelRefused, OpenClawError

SettingsCheck = Callable[[Config], None]
"""raises OpenClawError for settings that cannot work"""


ENGINES: Final = ("sglang", "vllm")
"""backends that are third-party engines behind a URL"""
CLOUD: Final = "tinker"
"""the backend that is a remote service"""
LOCAL_PACKAGES: Final = ("torch", "transformers", "peft", "safetensors")
"""packages required to serve or train a model on this machine"""


def policy(config: Config) -> None:
    """Check the serving backend, its GPUs, and the custom generate function."""
    plugins.check("policy", config.policy.backend)
    if config.policy.backend in ENGINES:
        _engine(config)
    if config.policy.backend == CLOUD:
        _cloud(config, "policy.backend")
    gpu_layout(config, visible=visible_gpus())
    refuse_useless_turns(config, visible=visible_gpus())
    if config.policy.generate:
        plugins.check("generate", config.policy.generate)


def _engine(config: Config) -> None:
    """Check that the engine can be started, or has an address."""
    policy, name = config.policy, config.policy.backend
    if policy.launch or (policy.launch is None and policy.url is None):
        python = policy.engine_python
        if python is None and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"policy.backend = {name}: this Python has no package {name}",
                remedy="name one that has it with --engine-python (scripts/vllm-env.sh sets up vLLM for a CPU), "
                "or an engine that runs already with --engine-url",
            )
        if python is not None and not python.is_file():
            raise ConfigError(
                f"policy.engine_python: there is no {python}", remedy="give the bin/python of an environment"
            )


def _cloud(config: Config, setting: str) -> None:
    """Check for the service's package and key."""
    if importlib.util.find_spec(CLOUD) is None:
        raise MissingExtra(CLOUD, CLOUD)
    if config.cloud.tinker_api_key is None:
        raise ConfigError(f"{setting} = {CLOUD}, but there is no key for it", remedy="set TINKER_API_KEY")


def unused_key(config: Config) -> str | None:
    """Return a note on a key that this run does not use; None if it is used or absent."""
    if config.cloud.tinker_api_key is None or CLOUD in (config.policy.backend, config.train.backend):
        return None
    return f"cloud.tinker_api_key is set, but this run serves and trains here; --preset {CLOUD} does both there"


def _same_place(config: Config) -> None:
    """Check that the serving backend can load the trainer's weights."""
    serves, trains = config.policy.backend, config.train.backend
    if serves == CLOUD and trains == "local":
        raise ConfigError(
            f"policy.backend = {CLOUD} serves what is trained there, but train.backend = {trains}",
            remedy=f"set train.backend = {CLOUD}, or take --preset {CLOUD}",
        )
    if trains == CLOUD and serves in ("local", *ENGINES) and not config.cloud.download:
        raise ConfigError(
            f"train.backend = {CLOUD} trains elsewhere, but policy.backend = {serves} serves here",
            remedy="set cloud.download = true to fetch each adapter, or policy.backend = " + CLOUD,
        )


def refuse_apart(config: Config) -> None:
    """Raise ConfigError for full fine-tuning on an engine that another process serves.

    Two processes would change the engine's weights independently.
    """
    if config.policy.backend in ENGINES and not config.train.lora.enabled:
        raise ConfigError(
            f"full fine-tunes on {config.policy.backend} cannot be examined apart from the process that serves",
            remedy="serve and train in one process, with 'openclaw-rl up', or set train.lora.enabled = true",
        )


def served_model(config: Config) -> None:
    """Check the weights to serve without loading them; other backends check their own."""
    if config.policy.backend == "local":
        _refuse_bare_python()
        _refuse_nowhere(config.policy.model)


def trained_model(config: Config) -> None:
    """Check the same weights for a process that only trains."""
    if config.train.backend == "local":
        _refuse_bare_python()
        _refuse_nowhere(config.policy.model)


def missing_packages() -> list[str]:
    """Return the `LOCAL_PACKAGES` that this Python lacks."""
    return [name for name in LOCAL_PACKAGES if importlib.util.find_spec(name) is None]


def _refuse_bare_python() -> None:
    if missing := missing_packages():
        raise MissingExtra(missing[0], "local")


def _refuse_nowhere(model: str) -> None:
    if fault := fault_of_model(model):
        raise ConfigError(f"policy.model: {fault.what}", remedy=fault.remedy) from fault


def fault_of_model(model: str) -> ModelRefused | None:
    """Return the fault of a path without a complete model; a hub id is not looked up."""
    try:
        plugins.load("policy", "openclaw_rl.backends.hf.finding:refuse_nowhere")(model)
    except ModelRefused as error:
        return error
    return None


def trainer(config: Config) -> None:
    """Check the training backend, its devices, and a custom loss."""
    _same_place(config)
    if config.train.backend == CLOUD:
        _cloud(config, "train.backend")
    gpu_layout(config, visible=visible_gpus())
    if config.train.local.nodes > 1:
        _nodes(config)
    plugins.check("trainer", config.train.backend)
    if config.train.loss.custom:
        _loss(config, config.train.loss.custom)


def _nodes(config: Config) -> None:
    """Check a trainer over several cluster nodes, with equally many ranks on each; `up` checks the cluster itself."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra("ray", "ray")
    trainer_devices(config, visible=visible_gpus())


def _loss(config: Config, name: str) -> None:
    """Check that a loss can be called and returns a scalar for a small batch; without torch the trial is skipped."""
    loss = plugins.resolve("loss", name)
    if importlib.util.find_spec("torch") is None:
        return
    from openclaw_rl.losses import as_loss, try_out

    contract, settings = plugins.loss_contract(loss), config.train.loss
    try_out(name, as_loss(loss, contract, loss_config(config), max_mismatch=settings.max_mismatch))


def environment(config: Config) -> None:
    """Check the episodes' environment and a custom rollout."""
    name = config.env.type
    if name:
        plugins.check("env", name)
        _refuse_unused(config, name)
    if name == "gui" and not config.env.workers:
        from openclaw_rl.envs.gui.chromium import check_browser

        check_browser(config.env.screenshot_backend, config.env.options.get("chromium"))
    if name == "swe" and not config.env.workers:
        from openclaw_rl.envs.swe.instances import read_instances

        read_instances(config.env.swe_bench_path)
    if config.train.rollout:
        plugins.check("rollout", config.train.rollout)


def _refuse_unused(config: Config, name: str) -> None:
    """Refuse a setting that this environment does not accept."""
    accepted = inspect.signature(plugins.resolve("env", name)).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values()):
        return
    for setting in ("tools_config", "folder", "swe_bench_path", "screenshot_backend", "screenshots", "pages"):
        if getattr(config.env, setting) != SETTINGS[f"env.{setting}"].default and setting not in accepted:
            raise ConfigError(f"env.{setting} is set, but environment {name} does not take it", remedy="take it out")


def judge(config: Config) -> None:
    """Check that the judge exists and has an address if it needs one."""
    settings = config.judge
    if settings.custom:
        plugins.check("judge", settings.custom)
        return
    plugins.check("judge", settings.kind)
    if settings.models.score or settings.models.hints:
        return  # a model that cannot start is shown in `status` and retried; the other loops continue
    if settings.kind == "llm" and settings.llm.model != "policy" and not (settings.llm.base_url and settings.llm.model):
        missing = " and ".join(name for name in ("base_url", "model") if not getattr(settings.llm, name))
        raise ConfigError(
            f"judge.kind is llm, but judge.llm has no {missing}",
            remedy="set judge.llm.base_url and judge.llm.model, or judge.models.score, or judge.kind = 'rules'",
        )


OF_LOOP: Final[Mapping[str, Sequence[SettingsCheck]]] = {
    "serve": (policy, served_model, environment),
    "judge": (judge,),
    "train": (trainer, trained_model),
}


def faults(config: Config, checks: Iterable[SettingsCheck]) -> Iterator[OpenClawError]:
    """Yield every distinct fault."""
    reported: set[str] = set()
    for check in checks:
        try:
            check(config)
        except OpenClawError as error:
            if str(error) not in reported:
                yield error
            reported.add(str(error))


def refuse_unworkable(config: Config, loops: Iterable[str]) -> None:
    """Raise one error for all faults that keep these loops from working."""
    errors = list(faults(config, [check for loop in loops for check in OF_LOOP.get(loop, ())]))
    if len(errors) > 1:
        raise ConfigError("\n".join(map(str, errors)))
    if errors:
        raise errors[0]
