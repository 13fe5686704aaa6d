"""Connects clients to a running server: their settings, and the file that receives these.

`read_server` reads the served model; `openclaw` and `recipe` return a client's settings; `write` merges them into a
settings file. All other functions are pure.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from openclaw_rl import files
from openclaw_rl.errors import BackendDown, BackendError, ConfigError

if TYPE_CHECKING:
    from openclaw_rl.clients.api import ServedModel

Settings: TypeAlias = dict[str, Any]

PROVIDER = "openclaw-rl"
"""the provider's name in a client's settings, which the OpenClaw plugin reads"""
NO_KEY = "local"
"""the key for clients that require one if the server requires none"""
LONGEST = 8192
"""most tokens in one reply in a client's settings"""
PATIENCE = 600
"""seconds a client waits: the server holds requests instead of refusing them"""


OUTRIGHT = (
    "rate a reply in the client itself: a message that is only /good, /bad, 👍 or 👎, or /fix TEXT (what would have"
    " made it better). Where the client keeps / for its own commands, a thumb does it, or a space before the /"
)
"""the text on inline feedback commands for a user who connects a client; `serve.inline_feedback` switches them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """A running server: its address up to /v1, its model, the token limit for prompt and reply together."""

    url: str
    model: str
    context: int

    @property
    def side(self) -> str:
        """Return the same model's name for calls that are never trained on."""
        return f"{self.model}-side"

    @property
    def output(self) -> int:
        """Return the most tokens in one reply: a quarter of the context, so that a prompt has room."""
        return min(LONGEST, self.context // 4)

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A client's settings: the text, and its place."""

    where: str
    text: str


# --- the server ---


async def read_server(url: str, key: str | None = None) -> ServerInfo:
    """Return the server at ``url``. Raises BackendDown if none answers, NotAllowed for a wrong key."""
    from openclaw_rl.clients.api import ApiClient

    remedy = "name the variable that holds the server's key with --key-env NAME"
    async with ApiClient(url, key=key, key_remedy=remedy, timeout=10.0) as client:
        return server_info(client.url, (await client.models())[0])


def server_info(url: str, model: ServedModel) -> ServerInfo:
    """Return the server for a listed model. Raises BackendError for another server, BackendDown while it loads."""
    if model.context is None:
        raise BackendError(
            f"what answers at {url} is no OpenClaw-RL server: its list of models names no context_length",
            remedy="give the address that 'openclaw-rl up' prints, with /v1 at its end",
        )
    if model.context < 1:
        raise BackendDown(f"the model at {url} is still being loaded", remedy="try again in a moment")
    return ServerInfo(url=url, model=model.name, context=model.context)


# --- OpenClaw ---


def openclaw(
    found: ServerInfo, *, key_env: str | None, lean: bool = False, plugin: bool = False, max_tokens: int | None = None
) -> Settings:
    """Return this server's part of openclaw.json. ``key_env`` None: the server requires no key.

    ``lean`` shrinks the prompt to about 3,000 tokens; ``plugin`` allows the plugin to read each call's run id.
    """
    limit = min(max_tokens or found.output, found.output)
    provider = {
        "baseUrl": found.url,
        "apiKey": f"${{{key_env}}}" if key_env else NO_KEY,
        "api": "openai-completions",
        "timeoutSeconds": PATIENCE,
        "models": [_openclaw_model(name, found.context, limit) for name in (found.model, found.side)],
    }
    settings: Settings = {
        "models": {"mode": "merge", "providers": {PROVIDER: provider}},
        "agents": {"defaults": _openclaw_roles(found)},
    }
    if lean:
        settings = merge(settings, _lean(found.context))
    if plugin:
        entry = {"enabled": True, "hooks": {"allowConversationAccess": True}}
        settings = merge(settings, {"plugins": {"entries": {PROVIDER: entry}}})
    return settings


def _openclaw_model(name: str, context: int, output: int) -> Settings:
    return {
        "id": name,
        "name": name,
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": context,
        "maxTokens": output,
        # Both make OpenClaw send a call's conversation id.
        "compat": {"supportsPromptCacheKey": True, "sendSessionAffinityHeaders": True},
    }


def _openclaw_roles(found: ServerInfo) -> Settings:
    """Use the model for the conversation, and the alias that is never trained on for all other calls."""
    side = f"{PROVIDER}/{found.side}"
    return {
        "model": {"primary": f"{PROVIDER}/{found.model}"},
        "utilityModel": side,
        "compaction": {"model": side, "memoryFlush": {"model": side}},
        "heartbeat": {"model": side},
    }


def _lean(context: int) -> Settings:
    """Return settings without injected files, skills or heartbeat, with four tools; summaries are not checked."""
    compaction = {"mode": "default", "qualityGuard": {"enabled": False}, "keepRecentTokens": max(256, context // 8)}
    return {
        "agents": {
            "defaults": {
                "contextInjection": "never",
                "skipBootstrap": True,
                "skills": [],
                "heartbeat": {"every": "0m"},
                "compaction": compaction,
            }
        },
        "tools": {"allow": ["read", "write", "edit", "exec"], "deny": ["apply_patch"], "toolSearch": False},
    }


# --- other clients ---


def recipe(client: str, found: ServerInfo, *, key_env: str | None) -> Recipe:
    """Return the settings for ``client``, which must be one of `CLIENTS`."""
    return CLIENTS[client](found, key_env)


def _claude_code(found: ServerInfo, key_env: str | None) -> Recipe:
    values = {
        "ANTHROPIC_BASE_URL": found.root,
        "ANTHROPIC_API_KEY": _shell_key(key_env),
        "ANTHROPIC_MODEL": shlex.quote(found.model),
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": shlex.quote(found.side),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(found.output),
    }
    return Recipe(where="in the shell that starts claude", text=_exports(values))


def _openai(found: ServerInfo, key_env: str | None) -> Recipe:
    values = {"OPENAI_BASE_URL": found.url, "OPENAI_API_KEY": _shell_key(key_env)}
    return Recipe(
        where=f"in the shell that starts your program; ask for {found.model!r}, or {found.side!r} to stay untrained",
        text=_exports(values),
    )


def _ollama(found: ServerInfo, key_env: str | None) -> Recipe:
    values = {"OLLAMA_HOST": found.root, **({"OLLAMA_API_KEY": _shell_key(key_env)} if key_env else {})}
    return Recipe(
        where=f"in the shell that starts your program, or {found.root} as its address; ask for {found.model!r}",
        text=_exports(values),
    )


def _codex(found: ServerInfo, key_env: str | None) -> Recipe:
    lines = [
        f"model = {json.dumps(found.model)}",
        f'model_provider = "{PROVIDER}"',
        f"model_context_window = {found.context}",
        "",
        f"[model_providers.{PROVIDER}]",
        'name = "OpenClaw-RL"',
        f"base_url = {json.dumps(found.url)}",
        'wire_api = "responses"',
        *([f'env_key = "{key_env}"'] if key_env else []),
    ]
    return Recipe(where="in ~/.codex/config.toml", text="\n".join(lines))


def _opencode(found: ServerInfo, key_env: str | None) -> Recipe:
    limit = {"limit": {"context": found.context, "output": found.output}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "OpenClaw-RL",
        "options": {"baseURL": found.url, "apiKey": f"{{env:{key_env}}}" if key_env else NO_KEY},
        "models": {found.model: limit, found.side: limit},
    }
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"{PROVIDER}/{found.model}",
        "small_model": f"{PROVIDER}/{found.side}",
        "provider": {PROVIDER: provider},
    }
    return Recipe(where="in opencode.json of your project, or ~/.config/opencode/opencode.json", text=to_json(settings))


CLIENTS: Mapping[str, Callable[[ServerInfo, str | None], Recipe]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "opencode": _opencode,
    "openai": _openai,
    "ollama": _ollama,
}


def _shell_key(key_env: str | None) -> str:
    return f'"${key_env}"' if key_env else NO_KEY


def _exports(values: Mapping[str, str]) -> str:
    return "\n".join(f"export {name}={value}" for name, value in values.items())


# --- files ---


def to_json(settings: Settings) -> str:
    return json.dumps(settings, indent=2, ensure_ascii=False)


def merge(old: Settings, new: Settings) -> Settings:
    """Return ``old`` with ``new`` merged over it: tables are joined, other values replaced, all else unchanged."""
    joined = dict(old)
    for name, value in new.items():
        before = joined.get(name)
        joined[name] = merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return joined


def never_wider(before: Settings, settings: Settings) -> Settings:
    """Return ``settings`` without any tool permission that the owner has denied the agent."""
    existing, proposed = before.get("tools"), settings.get("tools")
    if not isinstance(existing, dict) or proposed is None:
        return settings
    allow = existing.get("allow", proposed["allow"])
    deny = [*existing.get("deny", ()), *(tool for tool in proposed["deny"] if tool not in existing.get("deny", ()))]
    return {**settings, "tools": {**proposed, "allow": allow, "deny": deny}}


def write(path: Path, settings: Settings) -> Path | None:
    """Merge ``settings`` into the file and return the backup's path, None if there was nothing to back up.

    The file is written atomically. Raises ConfigError for a file whose comments would be lost.
    """
    path = path.resolve()
    before = read(path)
    after = merge(before, never_wider(before, settings))
    if after == before:
        return None
    backup = _back_up(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, to_json(after) + "\n", mode=0o600)  # for its owner alone: such files contain keys
    return backup


def read(path: Path) -> Settings:
    """Return the settings in a file; empty without a file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{path} is not plain JSON ({error}): comments and other JSON5 would be lost by writing it",
            remedy="run this again without --write and copy what it prints into the file",
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no object of settings", remedy="name another file with --config")
    return content


def _back_up(path: Path) -> Path | None:
    """Copy the file to an unused name beside it."""
    if not path.exists():
        return None
    names = chain([".before-openclaw-rl"], (f".before-openclaw-rl.{number}" for number in count(2)))
    backup = next(place for name in names if not (place := path.with_name(path.name + name)).exists())
    shutil.copy2(path, backup)
    return backup
