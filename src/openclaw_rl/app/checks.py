"""What these settings name and cannot work: found before anything listens, and by `doctor`. Each fault has a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from openclaw_rl import plugins
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError, OpenClawError

SettingsCheck = Callable[[Config], None]
"""raises OpenClawError for what cannot work"""


def policy(config: Config) -> None:
    """The backend that answers, and the function that asks it."""
    plugins.check("policy", config.policy.backend)
    if config.policy.generate:
        plugins.check("generate", config.policy.generate)


def trainer(config: Config) -> None:
    """The backend that trains, and a loss of the user's own."""
    plugins.check("trainer", config.train.backend)
    if config.train.loss.custom:
        plugins.check("loss", config.train.loss.custom)


def environment(config: Config) -> None:
    """The environment of the episodes, and a rollout of the user's own."""
    if config.env.type:
        plugins.check("env", config.env.type)
    if config.train.rollout:
        plugins.check("rollout", config.train.rollout)


def judge(config: Config) -> None:
    """A judge that is there, and that can be reached."""
    settings = config.judge
    if settings.custom:
        plugins.check("judge", settings.custom)
        return
    plugins.check("judge", settings.kind)
    if settings.kind == "llm" and settings.llm.model != "policy" and not (settings.llm.base_url and settings.llm.model):
        missing = " and ".join(name for name in ("base_url", "model") if not getattr(settings.llm, name))
        raise ConfigError(
            f"judge.kind is llm, but judge.llm has no {missing}",
            remedy="set judge.llm.base_url and judge.llm.model, or judge.kind = 'rules'",
        )


OF_LOOP: Final[Mapping[str, Sequence[SettingsCheck]]] = {
    "serve": (policy, environment),
    "judge": (judge,),
    "train": (trainer,),
}


def faults(config: Config, checks: Iterable[SettingsCheck]) -> Iterator[OpenClawError]:
    """Everything that is wrong."""
    for check in checks:
        try:
            check(config)
        except OpenClawError as error:
            yield error


def refuse_unworkable(config: Config, loops: Iterable[str]) -> None:
    """Raise for whatever keeps these loops from working, all of it at once."""
    found = list(faults(config, [check for loop in loops for check in OF_LOOP.get(loop, ())]))
    if len(found) > 1:
        raise ConfigError("\n".join(map(str, found)))
    if found:
        raise found[0]
