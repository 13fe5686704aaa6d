"""Agent programs in common use: the command that starts each on a task, without questions, against a given server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openclaw_rl.clients.connect import NO_KEY, ServerInfo, merge, openclaw, recipe, to_json
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import AGENT_HOME, AgentCommand

INSTRUCTION = "{instruction}"
_LARGEST_FILE = 1 << 20
"""size limit, in bytes, for a file copied with a custom command"""

Start = Callable[[ServerInfo, str, str], AgentCommand]
"""the words after the program's name, its environment and files, for a server, an instruction and the start folder"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """An agent program: its name, its executable, and the command that installs it."""

    name: str
    program: str
    install: str
    start: Start
    textual: tuple[str, ...] = ()
    """extra words for a model that calls no tools"""

    def command(
        self, server: ServerInfo, instruction: str, folder: str, *, path: str, calls_tools: bool, more: Sequence[str]
    ) -> AgentCommand:
        """Return the start command: ``path`` is the executable, ``more`` are further words for it."""
        base = self.start(server, instruction, folder)
        return replace(base, words=(path, *base.words, *(() if calls_tools else self.textual), *more))


def _claude_code(server: ServerInfo, instruction: str, _: str) -> AgentCommand:
    return AgentCommand(
        words=("-p", instruction, "--model", server.model, "--output-format", "json", "--dangerously-skip-permissions"),
        env={
            "ANTHROPIC_BASE_URL": server.root,
            "ANTHROPIC_API_KEY": NO_KEY,
            "ANTHROPIC_MODEL": server.model,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": server.side,
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(server.output),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        },
        files={},
    )


def _codex(server: ServerInfo, instruction: str, _: str) -> AgentCommand:
    return AgentCommand(
        words=("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", instruction),
        env={"CODEX_HOME": f"{AGENT_HOME}/.codex", "OPENCLAW_API_KEY": NO_KEY},
        files={".codex/config.toml": recipe("codex", server, key_env="OPENCLAW_API_KEY").text + "\n"},
    )


def _opencode(server: ServerInfo, instruction: str, _: str) -> AgentCommand:
    settings = json.loads(recipe("opencode", server, key_env=None).text)
    return AgentCommand(
        words=("run", "--format", "json", instruction),
        env={"OPENCODE_DISABLE_AUTOUPDATE": "1"},
        files={
            ".config/opencode/opencode.json": to_json({**settings, "autoupdate": False, "share": "disabled"}),
        },
    )


def _openclaw(server: ServerInfo, instruction: str, folder: str) -> AgentCommand:
    """Return the command with the task's folder as workspace; the lean settings write no files there."""
    place = f"{AGENT_HOME}/.openclaw"
    settings = merge(openclaw(server, key_env=None, lean=True), {"agents": {"defaults": {"workspace": folder}}})
    return AgentCommand(
        words=("agent", "--local", "--agent", "main", "--session-key", "agent:main:task", "-m", instruction, "--json"),
        env={"OPENCLAW_STATE_DIR": place, "OPENCLAW_CONFIG_PATH": f"{place}/openclaw.json"},
        files={".openclaw/openclaw.json": to_json(settings)},
    )


def _mini_swe_agent(server: ServerInfo, instruction: str, _: str) -> AgentCommand:
    return AgentCommand(
        words=("-t", instruction, "-m", f"openai/{server.model}", "-y", "--exit-immediately", "-l", "0"),
        env={
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": NO_KEY,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": f"{AGENT_HOME}/.config/mini-swe-agent",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        files={},
    )


_TEXTUAL_MINI = ("-c", "mini_textbased.yaml", "--model-class", "litellm_textbased")
AGENTS: Mapping[str, AgentProgram] = {
    agent.name: agent
    for agent in (
        AgentProgram(
            name="claude-code",
            program="claude",
            install="npm install -g @anthropic-ai/claude-code",
            start=_claude_code,
        ),
        AgentProgram(name="codex", program="codex", install="npm install -g @openai/codex", start=_codex),
        AgentProgram(name="opencode", program="opencode", install="npm install -g opencode-ai", start=_opencode),
        AgentProgram(name="openclaw", program="openclaw", install="npm install -g openclaw", start=_openclaw),
        AgentProgram(
            name="mini-swe-agent",
            program="mini",
            install="pip install mini-swe-agent",
            start=_mini_swe_agent,
            textual=_TEXTUAL_MINI,
        ),
    )
}
"""the programs known by name"""


# --- a custom command -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAgent:
    """A custom command: its words, and the small text files among them, which are copied to its home."""

    program: str
    words: tuple[str, ...]
    files: Mapping[str, str]

    @property
    def copied(self) -> bool:
        """Return True if the program itself is such a file."""
        return self.words[0] != self.program

    @classmethod
    def read(cls, command: str) -> OwnAgent:
        """Parse a command; raises ConfigError if it has no place for the instruction."""
        words = _split(command)
        places, files = list[str](), dict[str, str]()
        for number, word in enumerate(words):
            text = _own_text(word)
            if text is None:
                places.append(word)
            else:
                name = Path(word).name if Path(word).name not in files else f"{number}-{Path(word).name}"
                files[name] = text
                places.append(f"{AGENT_HOME}/{name}")
        return cls(program=words[0], words=tuple(places), files=files)

    def command(self, server: ServerInfo, instruction: str, *, path: str, more: Sequence[str]) -> AgentCommand:
        """Return the command for the program at ``path``; the SDKs' variables name the server."""
        words = [word.replace(INSTRUCTION, instruction) for word in self.words[1:]]
        return AgentCommand(
            words=(self.words[0] if self.copied else path, *words, *more),
            env={
                "OPENAI_BASE_URL": server.url,
                "OPENAI_API_KEY": NO_KEY,
                "OPENAI_MODEL": server.model,
                "ANTHROPIC_BASE_URL": server.root,
                "ANTHROPIC_API_KEY": NO_KEY,
                "ANTHROPIC_MODEL": server.model,
            },
            files=self.files,
        )


def _split(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--agent {command!r}: {error}", remedy="quote it as in a shell") from error
    if not any(INSTRUCTION in word for word in words[1:]):
        raise ConfigError(
            f"--agent {command!r} is no agent that is known by name, and no command with {INSTRUCTION} in it",
            remedy=f"known: {', '.join(AGENTS)}; or write {INSTRUCTION} where your program takes the task",
        )
    return words


def _own_text(word: str) -> str | None:
    """Return the content of a small text file of the user's; None for any other word."""
    path = Path(word)
    if INSTRUCTION in word or not path.is_file() or path.resolve().is_relative_to("/usr"):
        return None
    if path.stat().st_size > _LARGEST_FILE:
        return None
    try:
        return path.read_bytes().decode()  # unchanged: its line ends may matter
    except UnicodeDecodeError:
        return None
