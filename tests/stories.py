"""Small nouns for small stories."""

from __future__ import annotations

from typing import Any

from openclaw_rl.types import Completion, Message, Outcome, Prompt, Sampling, Turn, Verdict


def says(role: Any, content: str, **more: Any) -> Message:
    return Message(role=role, content=content, **more)


def asked(*contents: str) -> Prompt:
    """A prompt whose messages alternate user, assistant, user ..."""
    roles = ("user", "assistant")
    return Prompt(messages=tuple(says(roles[i % 2], content) for i, content in enumerate(contents)))


def replied(text: str = "ok", **more: Any) -> Completion:
    base: dict[str, Any] = {
        "reply": says("assistant", text),
        "prompt_tokens": (1, 2, 3),
        "reply_tokens": (7, 8),
        "logprobs": (-0.5, -0.25),
        "sampling": Sampling(),
        "finish": "stop",
        "version": 0,
    }
    return Completion(**{**base, **more})


def turned(text: str = "hello", *, completion: Completion | None = None, **more: Any) -> Turn:
    prompt = more.pop("prompt", None) or asked(text)
    return Turn(**{"prompt": prompt, "completion": completion or replied(), "user": "u1", **more})


def settled(turn: Turn, **more: Any) -> Outcome:
    base: dict[str, Any] = {
        "turn": turn.id,
        "session": "s",
        "kind": "main",
        "kind_reason": "declared",
        "index": 0,
        "next_state": (says("user", "thanks"),),
    }
    return Outcome(**{**base, **more})


def judged(turn: Turn, score: float | None = 1.0, **more: Any) -> Verdict:
    return Verdict(**{"turn": turn.id, "score": score, "source": "judge", **more})
