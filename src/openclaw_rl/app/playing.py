"""Agent programs connected to a running server, an environment's tasks, and the journal of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

from openclaw_rl.app import address
from openclaw_rl.app.environments import action_form, audit_book, build_env, build_sandbox_settings
from openclaw_rl.clients.agents import AGENTS, OwnAgent, Start
from openclaw_rl.clients.api import ApiClient
from openclaw_rl.clients.connect import ServerInfo, server_info
from openclaw_rl.config import Config, Resolved
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import AgentCommand, Env, SupportsTaskSets
from openclaw_rl.serve.loop import HttpServer
from openclaw_rl.types import new_id

if TYPE_CHECKING:
    from openclaw_rl.envs.play.journal import PlayPlan
    from openclaw_rl.envs.play.player import AgentPlayer, PlayedEpisode
    from openclaw_rl.envs.play.programs import FoundProgram

PLAYS = "plays"
"""the folder in a run directory with the journals of its plays"""
_HEAD_SECONDS, _HEAD_BYTES, _GRACE = 60.0, 65536, 1.0
_LOOK_SECONDS = 1.0
_ROOMY = {"disk_mb": 512, "processes": 512, "output_kb": 64 << 10}
"""sandbox limits for an agent program where the settings have defaults"""
_MEMORY_MB = 2048
_ADDRESSES_MB = 64 << 10
"""address space limit where memory itself cannot be limited: runtimes reserve many addresses"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayRequest:
    """A person's request: see the options of ``openclaw-rl play``."""

    agent: str
    program: str | None
    binds: tuple[Path, ...]
    more: tuple[str, ...]
    tasks: tuple[str, ...]
    count: int | None
    split: str
    rollouts: int
    seconds: float
    max_calls: int
    retries: int
    temperature: float | None
    url: str | None
    key: str | None
    resume: bool


async def play(
    resolved: Resolved, request: PlayRequest, *, report: Callable[[PlayedEpisode], None], say: Callable[[str], None]
) -> tuple[PlayPlan, list[PlayedEpisode]]:
    """Play the requested tasks. Invalid requests are refused before anything starts."""
    from openclaw_rl.envs.play.journal import PlayJournal, resumed

    config = _with_env(resolved.config)
    program, agent = _agent(config, request)
    url, key = _server(config, request)
    plan = _plan(config, request)
    folder = config.run.dir / PLAYS
    async with ApiClient(url, key=key, agent=f"env:play/{plan.agent}") as client:
        inside = replace(await _served(client, say), url=_inside())
        player = _player(
            resolved, config, request, program, lambda text, folder: agent(inside, text, folder), client, key
        )
        await _settle_old(player, folder, say)
        with resumed(folder, plan) if request.resume else PlayJournal.begin(folder, plan) as journal:
            assert journal.plan is not None
            if request.resume:
                say(f"{len(journal.done)} of {len(plan.tasks) * plan.rollouts} episodes were done before")
            return journal.plan, await player.play(journal, report=report)


def _inside() -> str:
    from openclaw_rl.envs.play.player import INSIDE

    return INSIDE


def _with_env(config: Config) -> Config:
    """Select the terminal if no environment is set."""
    if config.env.type is not None:
        return config
    return config.model_copy(update={"env": config.env.model_copy(update={"type": "terminal"})})


def _server(config: Config, request: PlayRequest) -> tuple[str, str | None]:
    """Return the gateway's address and an environment key for it; the run directory has both."""
    here = address.read(config.run.dir)
    if request.url is not None:
        return request.url, request.key
    if here is None:
        raise ConfigError("no server runs in this run directory", remedy="start 'openclaw-rl up', or give --url")
    return here.url, request.key or here.env_key


async def _served(client: ApiClient, say: Callable[[str], None]) -> ServerInfo:
    """Return the server's model and address once its model is loaded."""
    model, reported = (await client.models())[0], False
    while model.context == 0:
        if not reported:
            say("the server is loading its model")
        reported = True
        await asyncio.sleep(_LOOK_SECONDS)
        model = (await client.models())[0]
    return server_info(client.url, model)


# --- the agent


def _agent(config: Config, request: PlayRequest) -> tuple[FoundProgram, Start]:
    """Return the program on this machine, and the function that builds its start command."""
    from openclaw_rl.envs.play.programs import find_program

    preset, more = AGENTS.get(request.agent), request.more
    if preset is None:
        custom = OwnAgent.read(request.agent)
        program = find_program(request.program or custom.program, more=request.binds, copied=custom.copied)
        return program, lambda server, text, _: custom.command(server, text, path=program.path, more=more)
    program = find_program(request.program or preset.program, install=preset.install, more=request.binds)
    calls_tools = action_form(config) == "tools"
    return program, lambda server, text, folder: preset.command(
        server, text, folder, path=program.path, calls_tools=calls_tools, more=more
    )


# --- the tasks


def _plan(config: Config, request: PlayRequest) -> PlayPlan:
    from openclaw_rl.envs.play.journal import PlayPlan
    from openclaw_rl.envs.play.programs import SupportsAgents

    env = build_env(config)
    if not isinstance(env, SupportsAgents):
        raise ConfigError(
            f"environment {env.name} has no tasks for agent programs: what it checks is not in files",
            remedy="take one that has, such as --env terminal",
        )
    tasks = chosen(env, request.tasks, split=request.split, count=request.count)
    name = request.agent if request.agent in AGENTS else "own"
    return PlayPlan(
        id=f"play-{new_id()}",
        agent=name,
        env=env.name,
        split=request.split,
        tasks=tuple(tasks),
        rollouts=request.rollouts,
    )


def chosen(env: Env, names: Sequence[str], *, split: str, count: int | None) -> list[str]:
    """Return the tasks named by ``names`` (ids and levels; none: all), ``count`` per level, from one split.

    Raises ConfigError for an unknown name or a task in the other split.
    """
    sets = env if isinstance(env, SupportsTaskSets) else None
    held_out = list(sets.held_out()) if sets is not None else []
    there = held_out if split == "held-out" else list(env.tasks())
    by_level: dict[str, list[str]] = {}
    for task in there:
        by_level.setdefault(sets.level(task) if sets is not None else task, []).append(task)
    if not there:
        raise ConfigError(f"environment {env.name} has no tasks that are {split}", remedy="take the other --split")
    tasks = [task for name in (names or by_level) for task in _meant(name, there, by_level, count, split)]
    return list(dict.fromkeys(tasks))


def _meant(
    name: str, there: Sequence[str], by_level: dict[str, list[str]], count: int | None, split: str
) -> Sequence[str]:
    if name in by_level:
        return by_level[name][:count]
    if name in there:
        return [name]
    raise ConfigError(
        f"--tasks {name}: no such level or task is {split}",
        remedy=f"levels: {', '.join(list(by_level)[:20])}; 'openclaw-rl envs list --tasks' shows all",
    )


# --- the player


def _player(
    resolved: Resolved,
    config: Config,
    request: PlayRequest,
    found: FoundProgram,
    command: Callable[[str, str], AgentCommand],
    client: ApiClient,
    key: str | None,
) -> AgentPlayer:
    from openclaw_rl.envs.play.player import AgentPlayer, PlaySettings
    from openclaw_rl.errors import TaskRefused

    sandbox = replace(build_sandbox_settings(_roomy(resolved, config, request.seconds)), binds=found.folders)
    book, plain = audit_book(config), build_env(config)

    async def admit(task: str) -> None:
        if isinstance(plain, SupportsTaskSets):
            audit = await book.audited(lambda: build_env(config), plain, task)
            if audit.fault:
                raise TaskRefused(
                    f"task {task} is not admitted: {audit.fault}", remedy="'openclaw-rl envs audit' shows all"
                )

    return AgentPlayer(
        lambda: build_env(config, sandbox=sandbox),
        client,
        PlaySettings(
            root=client.url.removesuffix("/v1"),
            key=key,
            command=command,
            search=found.search,
            parallel=config.env.parallel,
            seconds=request.seconds,
            max_calls=request.max_calls,
            retries=request.retries,
            temperature=request.temperature,
            seed=config.run.seed,
        ),
        serve=serving_at,
        admit=admit,
    )


def _roomy(resolved: Resolved, config: Config, seconds: float) -> Config:
    """Return settings whose sandbox has room for a program like node, except for limits that the user set."""
    from openclaw_rl.envs.sandbox import cgroups

    room = {**_ROOMY, "memory_mb": _MEMORY_MB if cgroups.enforced() else _ADDRESSES_MB, "cpu_seconds": round(seconds)}
    free = {name: size for name, size in room.items() if resolved.sources[f"env.sandbox.{name}"] == "default"}
    sandbox = config.env.sandbox.model_copy(update=free)
    return config.model_copy(update={"env": config.env.model_copy(update={"sandbox": sandbox})})


@asynccontextmanager
async def serving_at(app: Any, listener: socket) -> AsyncIterator[None]:
    """Serve an ASGI application at a listening socket, which is closed at the end."""
    server = HttpServer(app, listener, grace=_GRACE, head_seconds=_HEAD_SECONDS, head_bytes=_HEAD_BYTES)
    await server.begin()
    try:
        yield
    finally:
        await server.end()
        listener.close()


async def _settle_old(player: AgentPlayer, folder: Path, say: Callable[[str], None]) -> None:
    """Finish the episodes of killed players."""
    from openclaw_rl.envs.play.journal import PlayJournal

    for journal in PlayJournal.taken_over(folder):
        with journal:
            for episode in await player.finish(journal):
                say(f"{episode.session}, of a player that was killed, is {_what(episode.outcome)}")


def _what(outcome: float | None) -> str:
    return "told to have failed" if outcome is None else f"paid {outcome:+.2f}"
