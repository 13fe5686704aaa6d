"""Clients of every wire format that note which answers reached them whole, and how the others failed."""

from __future__ import annotations

import http.client
import json
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FAILED = re.compile(r'"(?:error": *\{|type": *"error")')
ENDED = re.compile(r'finish_reason": *"(\w+)')
REMARKS = (
    "Too long. Please keep it under 30 words.",
    "Please don't use bullet points.",
    "Thanks, that's perfect!",
    "And what is it made of?",
    "No, that's wrong.",
)
THINGS = (
    "tea",
    "a comet",
    "bread",
    "the moon",
    "glass",
    "a river",
    "salt",
    "a violin",
    "ice",
    "a bee",
    "paper",
    "rain",
)
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
NOTES_KEPT = 2
"""notes that a client leaves in force: with more it removes its oldest"""
FULL = ("data: [DONE]", '"type":"message_stop"', '"type":"response.completed"', '"type":"response.incomplete"')
"""what the last event of a whole stream says, in each wire format"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request that was not answered: what was seen, and between when and when."""

    kind: str
    detail: str
    began: float
    ended: float


@dataclass
class Seen:
    """What all clients saw. Times are of the monotonic clock.

    ``deleted`` are turns whose session was deleted, ``unsure`` those of which no client knows; so are ``removed`` and
    ``unsure_notes`` of the ``notes`` that were made.
    """

    answered: dict[str, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    begun: int = 0
    left: int = 0
    feedback: int = 0
    formatted: int = 0
    off_format: list[str] = field(default_factory=list)
    notes: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)
    unsure_notes: set[int] = field(default_factory=set)
    deletions: int = 0
    deleted: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One wire format: where it is asked and how, and what its replies say."""

    path: str
    body: Callable[[Sequence[Mapping[str, str]]], dict[str, Any]]
    reply: Callable[[dict[str, Any]], str]


def _responses_text(answer: dict[str, Any]) -> str:
    parts = [part for item in answer["output"] for part in item.get("content", ())]
    return "".join(part.get("text", "") for part in parts)


WIRES = {
    "chat": Wire(
        path="/v1/chat/completions",
        body=lambda talk: {"messages": list(talk)},
        reply=lambda answer: str(answer["choices"][0]["message"]["content"]),
    ),
    "responses": Wire(path="/v1/responses", body=lambda talk: {"input": list(talk)}, reply=_responses_text),
    "messages": Wire(
        path="/v1/messages",
        body=lambda talk: {"messages": list(talk)},
        reply=lambda answer: "".join(part.get("text", "") for part in answer["content"]),
    ),
}


class Talker(threading.Thread):
    """Holds conversations of three turns in any wire format until told that it is over."""

    def __init__(self, name: str, *, key: str, port: int, seen: Seen, tokens: int, pause: float, holds: bool) -> None:
        """``holds``: its engine holds a reply to a schema; else it is asked for one that may be anything."""
        super().__init__(daemon=True, name=name)
        self._rng = random.Random(name)
        self._key = key
        self._port = port
        self._seen = seen
        self._tokens = tokens
        self._pause = pause
        self._holds = holds
        self._notes: list[int] = []
        self._turns: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            self._converse(self._rng.choice(list(WIRES)), session=f"{self.name}-{self._rng.randrange(10**9)}")

    def _converse(self, wire: str, *, session: str) -> None:
        talk = [{"role": "user", "content": f"What is {self._rng.choice(THINGS)}?"}]
        named = {"x-session-id": session} if self._rng.random() < 0.5 else {}
        self._turns = []
        for _ in range(3):
            reply = None if self.over.is_set() else self._ask(WIRES[wire], talk, named)
            self.over.wait(self._pause if reply is not None else 5 * self._pause)
            if reply is None:
                break
            talk += [{"role": "assistant", "content": reply}, {"role": "user", "content": self._rng.choice(REMARKS)}]
        if named and self._turns and self._rng.random() < 0.2:
            self._delete_session(session)
        if self._rng.random() < 0.1:
            self._change_notes()

    def _ask(self, wire: Wire, talk: Sequence[Mapping[str, str]], named: Mapping[str, str]) -> str | None:
        """One request; the reply, or None where there is none (then it is noted why)."""
        stream = self._rng.random() < 0.5
        leaves = stream and self._rng.random() < 0.15
        size = "max_output_tokens" if wire.path.endswith("responses") else "max_tokens"
        body = wire.body(talk) | {"model": "soak", "stream": stream, size: self._tokens}
        formatted = wire is WIRES["chat"] and self._rng.random() < 0.2
        if formatted:
            asked = {"name": "reply", "strict": self._holds, "schema": SCHEMA}
            body |= {"response_format": {"type": "json_schema", "json_schema": asked}}
        began = time.monotonic()
        self._seen.begun += 1
        try:
            status, raw = self._post(wire.path, body, named, leaves=leaves)
        except (OSError, http.client.HTTPException) as error:
            self._fail(type(error).__name__, str(error), began)
            return None
        if status != 200:
            self._fail(f"status {status}", raw[:200], began)
            return None
        if leaves:
            self._seen.left += 1
            return None
        reply = self._note(wire, raw, stream=stream, began=began)
        if formatted and reply is not None:
            self._seen.formatted += 1
            if self._holds:
                self._check_format(raw, reply)
        return reply

    def _check_format(self, raw: str, reply: str) -> None:
        """A reply under a schema is what it asks for, or the beginning of it where it was cut off."""
        if '"length"' in raw:
            return
        try:
            value = json.loads(reply)
        except ValueError:
            value = None
        if not isinstance(value, dict) or set(value) != {"answer", "sure"}:
            self._seen.off_format.append(f"{reply[:200]} ({', '.join(sorted(set(ENDED.findall(raw))))})")

    def _delete_session(self, session: str) -> None:
        """Delete the session that was just talked in; its turns are gone, or nobody knows."""
        turns = set(self._turns)
        answer = self._call("DELETE", f"/v1/sessions/{session}", None)
        if answer is None:
            self._seen.unsure |= turns
            return
        self._seen.deletions += 1
        self._seen.deleted |= turns

    def _change_notes(self) -> None:
        """Make a note; remove the oldest of those that are too many."""
        text = f"Write the word {secrets.token_hex(4)} once in each reply."
        made = self._call("POST", "/v1/notes", {"text": text})
        if made is not None and made["new"]:
            self._seen.notes.add(made["number"])
            self._notes.append(made["number"])
        while len(self._notes) > NOTES_KEPT:
            number = self._notes.pop(0)
            removed = self._call("DELETE", f"/v1/notes/{number}", None) is not None
            (self._seen.removed if removed else self._seen.unsure_notes).add(number)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Any other endpoint; its answer, or None where there is none (then it is noted why)."""
        began = time.monotonic()
        try:
            status, raw = self._post(path, body, {}, method=method)
        except (OSError, http.client.HTTPException) as error:
            self._fail(f"{method} {path.split('/')[2]}: {type(error).__name__}", str(error), began)
            return None
        if status != 200:
            self._fail(f"{method} {path.split('/')[2]}: status {status}", raw[:200], began)
            return None
        found: dict[str, Any] = json.loads(raw)
        return found

    def _post(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        named: Mapping[str, str],
        *,
        leaves: bool = False,
        method: str = "POST",
    ) -> tuple[int, str]:
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=180)
        try:
            headers = {"content-type": "application/json", "authorization": f"Bearer {self._key}", **named}
            link.request(method, path, None if body is None else json.dumps(body), headers)
            answer = link.getresponse()
            raw = answer.readline() if leaves and answer.status == 200 else answer.read()
            return answer.status, raw.decode(errors="replace")
        finally:
            link.close()

    def _note(self, wire: Wire, raw: str, *, stream: bool, began: float) -> str | None:
        """An answer that came whole; a stream that says at its end that it failed, or says nothing, did not."""
        if not stream:
            answer = json.loads(raw)
            self._answered(answer["id"])
            return wire.reply(answer)
        said = next((line for line in raw.splitlines() if FAILED.search(line)), "")
        if said or not any(end in raw.replace('": "', '":"') for end in FULL):  # a failed chat ends in [DONE] as well
            self._fail("stream cut" if not said else "stream ended in an error", said[:200], began)
            return None
        events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
        self._answered(_id_of(events[0]))
        return "".join(map(_text_of, events))

    def _answered(self, name: str) -> None:
        for prefix in ("resp_", "msg_", "chatcmpl-"):
            name = name.removeprefix(prefix)
        self._seen.answered[name] = time.monotonic()
        self._turns.append(name)
        if self._rng.random() < 0.15:
            self._give_feedback(name)

    def _give_feedback(self, turn: str) -> None:
        began = time.monotonic()
        said = self._rng.choice(({"thumb": "up"}, {"thumb": "down", "comment": "Keep it short."}, {"score": 0.5}))
        try:
            status, raw = self._post("/v1/feedback", {"turn": turn, **said}, {})
        except (OSError, http.client.HTTPException) as error:
            self._fail(f"feedback: {type(error).__name__}", str(error), began)
            return
        if status != 200:
            self._fail(f"feedback: status {status}", raw[:200], began)
        else:
            self._seen.feedback += 1

    def _fail(self, kind: str, detail: str, began: float) -> None:
        self._seen.failures.append(Failure(kind=kind, detail=detail, began=began, ended=time.monotonic()))


def _id_of(event: dict[str, Any]) -> str:
    """Of the first event of a stream."""
    inside = event.get("response") or event.get("message") or event
    return str(inside["id"])


def _text_of(event: dict[str, Any]) -> str:
    if event.get("choices"):
        return str(event["choices"][0]["delta"].get("content") or "")
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    if event.get("type") == "content_block_delta":
        return str(event["delta"].get("text") or "")
    return ""
