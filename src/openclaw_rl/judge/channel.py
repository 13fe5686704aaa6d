"""Channel of a conversation: a chat, or a coding agent at work on files. Pure."""
# ruff: noqa: E501  (each pattern stays on one line)

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from openclaw_rl.ports import Case

Channel: TypeAlias = Literal["chat", "coding"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)

ENOUGH = 2
"""minimum signs of a coding agent in a coding conversation"""
_MOST = 20_000  # characters of a text that are read
_CLIENT = re.compile(
    r"coding agent|claude[-_ ]?code|aider|cursor|codex|cline|roo[-_ ]?code|opencode|windsurf|copilot|continue\.dev|zed|swe[-_ ]agent|openhands"
    r"|goose|gemini[-_ ]?cli|qwen[-_ ]?code",
    re.IGNORECASE,
)
_TOOL = re.compile(
    r"\b(?:bash|shell|terminal|exec(?:ute)?(?:_command)?|run_(?:command|terminal\w*)|edit|multi_?edit|write(?:_file|_to_file)?"
    r"|read_file|str_replace\w*|apply_(?:diff|patch)|grep|glob|codebase_search)\b",
    re.IGNORECASE,
)
_PATH = re.compile(
    r"(?<![\w/.])(?:[\w.@-]{1,64}/){0,12}[\w.@-]{1,64}\.(?:py|pyi|ts|tsx|js|jsx|mjs|rs|go|java|kt|c|cc|cpp|h|hpp|cs|rb|php|swift|sql|sh|toml|ya?ml"
    r"|json|lock|gradle|vue|svelte|css|scss|html|md|tf|ipynb)(?::\d{1,6})?(?![\w/])|(?<![\w/.])(?:[\w.@-]{1,64}/){2,12}"
)
_DEED = re.compile(
    r"(?:^|[.!?:\n]\s{0,3}|\*\*)(?:I(?:'ve| have|'ll| will)?|Let me|Now(?: I(?:'ll)?)?|Done|Updated|Created|Fixed)\s[^.\n]{0,40}?"
    r"(?:\b(?:run|ran|edit(?:ed)?|creat(?:e|ed)|add(?:ed)?|updat(?:e|ed)|fix(?:ed)?|commit(?:ted)?|refactor(?:ed)?|renam(?:e|ed)|remov(?:e|ed)"
    r"|implement(?:ed)?|install(?:ed)?|compil(?:e|es|ed)|move[ds]?)\b)",
    re.IGNORECASE,
)
_ORDER = re.compile(
    r"\b(?:commit|push|merge|rebase|lint|refactor|deploy|pull request|unit tests?|test suite|crate|repo(?:sitory)?|branch|codebase|docker|npm|pip|cargo|gradle)\b"
    r"|(?<!\S)@[\w-]{2,40}|(?<!\S)#[a-z]+_\w+",
    re.IGNORECASE,
)
_TRACE = re.compile(
    r"^Traceback \(most recent call last\)|^[ \t]+at [\w.$<>]+ ?\(|^\S+:\d+:\d+: (?:error|warning)|^error(?:\[E\d+\]|:)|^FAILED |npm ERR!",
    re.MULTILINE,
)


_TOOL_USE = re.compile(
    r"^\W{0,4}Tool (?:use|call):|<(?:function_calls|invoke|tool_call|execute_command)\b|\brun_terminal_cmd\b",
    re.MULTILINE,
)


def channel_of(case: Case) -> Channel:
    """Return a case's channel, from its client, its tools, and the request, the reply and the message."""
    if _CLIENT.search(case.turn.client or ""):
        return "coding"
    if any(_TOOL.search(tool.name) for tool in case.turn.prompt.tools):
        return "coding"
    users = [message.content for message in case.turn.prompt.messages if message.role == "user"]
    after = "\n".join(message.content for message in case.outcome.next_state if message.role == "user")
    return channel_of_texts(users[-1] if users else "", case.turn.completion.reply.content, after)


def channel_of_texts(request: str, reply: str, message: str) -> Channel:
    """Return the channel of three texts, by orders, the assistant's reported actions, paths and traces."""
    request, reply, message = (text[:_MOST] for text in (request, reply, message))
    signs = (
        bool(_DEED.search(reply)) + (bool(_DEED.search(reply)) and bool(_PATH.search(reply))),
        _any(_PATH, (request, message)),
        _any(_ORDER, (request, message)),
        bool(_TRACE.search(message)),
        2 * bool(_TOOL_USE.search(reply)),
    )
    return "coding" if sum(signs) >= ENOUGH else "chat"


def _any(shape: re.Pattern[str], texts: Iterable[str]) -> bool:
    return any(shape.search(text) for text in texts)
