"""Import and export of recorded conversations: the manual format, one object, a list of them, or one per line.

    {"session_id": "…",
     "turns": [{"type": "main", "prompt": "…", "response": "…", "next_state": "…", "trainable": true}]}

``prompt`` is the user's message, or a list of messages, or absent beside ``messages`` (the whole prompt). A main turn
whose prompt is the ``next_state`` of the main turn before it continues that conversation; any other begins a new one.
``next_state`` is text (the user's next message), one message, or a list of messages. Unknown keys are kept and exported
again. Files are read record by record, so a file may be larger than memory.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

from openclaw_rl.errors import ImportRefused, InvalidValue, RequestError
from openclaw_rl.store import ImportLedger, LedgerReader, codec
from openclaw_rl.types import Completion, ImportRecord, Json, Message, Prompt, Sampling, Tokens, Turn, canonical
from openclaw_rl.web import is_deeper, is_whole

CHUNK = 1 << 16
_DEPTH = 64
_TOO_DEEP = f"nested more than {_DEPTH} levels deep"
_HALVED = "holds half a character, or bytes that are not UTF-8"


class Scorer(Protocol):
    """An import's needs from a policy: ids, and the log-probs of a reply that it did not sample."""

    @property
    def live(self) -> int: ...
    async def encode(self, prompt: Prompt) -> Tokens: ...
    async def tokenize(self, text: str) -> Tokens: ...
    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Any: ...


@dataclass(slots=True)
class ImportReport:
    """An import's result: conversations and turns written, and records refused, each with its place and reason.
    ``known`` turns were in the ledger already and were left unchanged. Among the turns written, ``main`` may train, and
    ``unread`` counts those of them that get no verdict, by the reason.
    """

    sessions: int = 0
    turns: int = 0
    known: int = 0
    main: int = 0
    unread: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)

    def count_verdicts(self, rows: Iterable[tuple[Turn, ImportRecord]], unread: Unread) -> None:
        """Count the new rows that may train, and those for which ``unread`` returns a reason."""
        for turn, record in rows:
            if record.kind == "main" and record.trainable:
                self.main += 1
                if (why := unread(turn, record)) is not None:
                    self.unread[why] += 1

    @property
    def verdicts(self) -> str:
        """The share without a verdict and the reasons, in a line; empty if no turn that may train was written."""
        if not self.main:
            return ""
        missing = self.unread.total()
        why = ", ".join(f"{reason} ({count})" for reason, count in self.unread.most_common())
        share = (
            f"{missing} ({missing / self.main:.0%}) get no verdict by rules: {why}" if missing else "all get a verdict"
        )
        return f"{self.main} main turns to train, {share}"


Progress: TypeAlias = Callable[[ImportReport], Awaitable[None]]
Unread: TypeAlias = Callable[[Turn, ImportRecord], str | None]
"""the reason why a recorded turn gets no verdict; None if it gets one"""

# --- in ---


@dataclass(frozen=True, slots=True)
class TranscriptRecord:
    """A conversation as it is in the file; ``fault`` is set instead if it cannot be read."""

    line: int
    value: Json = None
    fault: str | None = None


def records(file: IO[str]) -> Iterator[TranscriptRecord]:
    """Yield each top-level object in a JSON list, in JSONL, or over many lines; one is in memory at a time."""
    text, at, line, in_list = "", 0, 1, False
    decoder = json.JSONDecoder()
    while True:
        start = _skip(text, at, ", \t\r\n\ufeff" if in_list else " \t\r\n\ufeff")
        line, at = line + text.count("\n", at, start), start
        if at == len(text):
            text, at = file.read(CHUNK), 0
            if not text:
                return
        elif text[at] == "]" or (text[at] == "[" and not in_list):
            in_list, at = text[at] == "[", at + 1
        else:
            try:
                value, end = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                chunk = file.read(max(CHUNK, len(text) - at)) if _unfinished(error, text) else ""
                if chunk:  # twice as much each time, so that one huge record stays linear
                    text, at = text[at:] + chunk, 0
                    continue
                yield TranscriptRecord(line, fault=_fault(error, line, text, at))
                text, at, line = *_next_line(file, text, at), line + 1  # later records are still read
                in_list = in_list and text[at : at + 1] != "["
            else:
                yield TranscriptRecord(line, value)
                line, at = line + text.count("\n", at, end), end


def _skip(text: str, at: int, blanks: str) -> int:
    while at < len(text) and text[at] in blanks:
        at += 1
    return at


def _fault(error: ValueError | RecursionError, line: int, text: str, at: int) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} (line {line + text.count(chr(10), at, error.pos)})"
    return _TOO_DEEP if isinstance(error, RecursionError) else "a number has too many digits"


def _next_line(file: IO[str], text: str, at: int) -> tuple[str, int]:
    """Return text from the file and the position of its next line; empty text if the file ends first."""
    while (end := text.find("\n", at) + 1) == 0 and text:
        text, at = file.read(CHUNK), 0
    return text, end


def _unfinished(error: ValueError | RecursionError, text: str) -> bool:
    """Check if the text ended too early instead of being wrong. The longest token that can be cut is an escape."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.pos >= len(text) - 8 or error.msg.startswith("Unterminated string")


async def import_file(
    ledger: ImportLedger,
    path: Path,
    policy: Scorer,
    *,
    user: str,
    strict: bool = False,
    progress: Progress | None = None,
    unread: Unread | None = None,
) -> ImportReport:
    """Read conversations into the ledger, each atomically; with ``strict`` one bad record refuses the file.

    A turn that is in the ledger already (user, session, place, prompt, reply, next state) is counted as known and not
    written again. ``unread`` fills in that part of the report. Reading pauses while ``progress`` runs.
    """
    report = ImportReport()
    if strict:
        _check_all(path)
    async for _ in read_conversations(ledger, path, policy, report, user=user, unread=unread):
        if progress is not None:
            await progress(report)
    return report


async def read_conversations(
    ledger: ImportLedger,
    path: Path,
    policy: Scorer,
    report: ImportReport,
    *,
    user: str,
    unread: Unread | None = None,
) -> AsyncIterator[list[str]]:
    """Read conversations into the ledger one at a time; yield each one's new turns, counted in ``report``."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for record in records(file):
            try:
                session, turns = parse(record)
                recorded = {turn_id(user, session, index, turn): (index, turn) for index, turn in enumerate(turns)}
                new = {id: item for id, item in recorded.items() if not ledger.has_turn(id)}
                rows = [await _row(id, session, index, turn, policy, user) for id, (index, turn) in new.items()]
            except ImportRefused as error:
                report.refused.append(f"{path}:{error.what}")
                continue
            except RequestError as error:  # too long for this model, or a prompt that its template cannot render
                report.refused.append(f"{path}:{record.line}: {error.what}")
                continue
            ledger.add_recorded(rows)
            report.sessions += bool(rows)
            report.turns += len(rows)
            report.known += len(recorded) - len(rows)
            if unread is not None:
                report.count_verdicts(rows, unread)
            yield list(new)


def turn_id(user: str, session: str, index: int, turn: RecordedTurn) -> str:
    """Return a recorded turn's id: the same record by the same user always gives the same id."""
    key = [
        user,
        session,
        index,
        turn.kind,
        turn.trainable,
        *map(codec.plain, (turn.prompt, turn.reply, turn.next_state)),
    ]
    return f"import-{hashlib.sha256(canonical(key).encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def _check_all(path: Path) -> None:
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for record in records(file):
            try:
                parse(record)
            except ImportRefused as error:
                raise ImportRefused(
                    f"{path}:{error.what}", remedy="nothing was imported; correct it, or leave out --strict"
                ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """A turn in a record, parsed."""

    kind: Any
    prompt: Prompt
    reply: Message
    next_state: tuple[Message, ...]
    trainable: bool
    extra: Mapping[str, Json]


def parse(record: TranscriptRecord) -> tuple[str, list[RecordedTurn]]:
    """Parse a conversation's record; raise ImportRefused with line and field."""
    if record.fault:
        raise ImportRefused(f"{record.line}: {record.fault}")
    value = record.value
    _want(isinstance(value, Mapping), record.line, "", "a conversation must be an object")
    _want(not is_deeper(value, _DEPTH), record.line, "", _TOO_DEEP)
    session, turns = value.get("session_id"), value.get("turns")
    _want(isinstance(session, str) and bool(session), record.line, "session_id", "must be a text that is not empty")
    _want(isinstance(turns, list) and bool(turns), record.line, "turns", "must be a list that is not empty")
    parsed: list[RecordedTurn] = []
    for index, turn in enumerate(turns):
        parsed.append(_turn(turn, parsed, line=record.line, where=f"turns[{index}]"))
    _want(_encodable({**value, "turns": []}), record.line, "", _HALVED)
    if extra := {key: part for key, part in value.items() if key not in ("session_id", "turns")}:
        parsed[0] = replace(parsed[0], extra={**parsed[0].extra, "session": extra})
    return session, parsed


def _turn(turn: Json, before: list[RecordedTurn], *, line: int, where: str) -> RecordedTurn:
    _want(isinstance(turn, Mapping), line, where, "must be an object")
    _want(_encodable(turn), line, where, _HALVED)
    kind = turn.get("type", "main")
    _want(kind in ("main", "side"), line, f"{where}.type", f"{kind!r} is neither 'main' nor 'side'")
    trainable = turn.get("trainable", kind == "main")
    _want(isinstance(trainable, bool), line, f"{where}.trainable", "must be true or false")
    try:
        reply = _reply(turn, line=line, where=where)
        prompt = _prompt(turn, before if kind == "main" else [], line=line, where=where)
        next_state = _messages(turn.get("next_state"), line=line, where=f"{where}.next_state")
    except (InvalidValue, TypeError, KeyError, AttributeError) as error:
        raise ImportRefused(f"{line}: {where}: {error}") from error
    return RecordedTurn(
        kind=kind, prompt=prompt, reply=reply, next_state=next_state, trainable=trainable, extra={"turn": turn}
    )


def _reply(turn: Mapping[str, Json], *, line: int, where: str) -> Message:
    reply = turn.get("response")
    if isinstance(reply, Mapping):
        _want(reply.get("role", "assistant") == "assistant", line, f"{where}.response.role", "must be assistant")
        return codec.message({"role": "assistant", **reply})
    _want(isinstance(reply, str), line, f"{where}.response", "must be a text")
    return Message(role="assistant", content=str(reply))


def _prompt(turn: Mapping[str, Json], before: list[RecordedTurn], *, line: int, where: str) -> Prompt:
    if "messages" in turn:
        fields = {"messages": turn["messages"], "tools": turn.get("tools", ())}
        return codec.prompt(fields)
    value = turn.get("prompt")
    _want(
        isinstance(value, list | str) and bool(value), line, f"{where}.prompt", "must be a text or a list of messages"
    )
    fresh = _messages(value, line=line, where=f"{where}.prompt")
    last = next((recorded for recorded in reversed(before) if recorded.kind == "main"), None)
    if isinstance(value, str) and last is not None and last.next_state == fresh:
        return Prompt(messages=(*last.prompt.messages, last.reply, *fresh), tools=last.prompt.tools)
    return Prompt(messages=fresh)


def _messages(value: Json, *, line: int, where: str) -> tuple[Message, ...]:
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (Message(role="user", content=value),)
    items = [value] if isinstance(value, Mapping) else value
    _want(isinstance(items, list), line, where, "must be a text, a message or a list of messages")
    return codec.messages(items)


def _encodable(value: Json) -> bool:
    return is_whole(json.dumps(value, ensure_ascii=False))


def _want(ok: bool, line: int, where: str, what: str) -> None:
    if not ok:
        raise ImportRefused(f"{line}: {where}: {what}" if where else f"{line}: {what}")


async def _row(
    id: str, session: str, index: int, given: RecordedTurn, policy: Scorer, user: str
) -> tuple[Turn, ImportRecord]:
    prompt_ids = await policy.encode(given.prompt)
    reply_ids = await policy.tokenize(_written(given.reply))
    scores = await policy.score(prompt_ids, reply_ids)
    completion = Completion(
        reply=given.reply,
        prompt_tokens=prompt_ids,
        reply_tokens=reply_ids,
        logprobs=scores.logprobs,
        sampling=Sampling(),
        finish="tool_calls" if given.reply.tool_calls else "stop",
        version=policy.live,
        scored=True,
    )
    turn = Turn(
        id=id,
        session=session,
        user=user,
        client="import",
        declared=given.kind,
        trainable=given.trainable,
        prompt=given.prompt,
        completion=completion,
    )
    recorded = ImportRecord(
        turn=turn.id,
        session=session,
        index=index,
        kind=given.kind,
        next_state=given.next_state,
        trainable=given.trainable,
        extra=given.extra,
    )
    return turn, recorded


def _written(reply: Message) -> str:
    calls = "".join(
        f'\n<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
        for call in reply.tool_calls
    )
    return reply.content + calls


# --- out ---


def export(ledger: LedgerReader, *, tokens: bool = False) -> Iterator[Json]:
    """Yield every session in the manual format; imported ones exactly as received, served ones with all fields."""
    for session, user in ledger.sessions():
        yield export_session(ledger, session, user, tokens=tokens)


def export_session(ledger: LedgerReader, session: str, user: str, *, tokens: bool = False) -> Json:
    """Return a session in the manual format."""
    out: dict[str, Json] = {"session_id": session, "turns": []}
    for turn in [ledger.turn(entry) for entry in ledger.session(session, user) or [session]]:
        entry = ledger.recorded(turn.id)
        recorded = entry if isinstance(entry, ImportRecord) else None
        if recorded and "session" in recorded.extra:
            out |= recorded.extra["session"]
        original = recorded.extra.get("turn") if recorded else None
        out["turns"].append(original if original is not None else _exported(ledger, turn, tokens=tokens))
    return out


def _exported(ledger: LedgerReader, turn: Turn, *, tokens: bool) -> dict[str, Json]:
    outcome, verdict = ledger.outcome(turn.id), ledger.verdict(turn.id)
    kind = outcome.kind if outcome else turn.declared or "main"
    completion = turn.completion
    out: dict[str, Json] = {
        "type": kind,
        "prompt": turn.prompt.messages[-1].content,
        "response": completion.reply.content
        if completion.reply == _bare(completion.reply)
        else codec.plain(completion.reply),
        "next_state": codec.plain(outcome.next_state) if outcome and outcome.next_state else None,
        "trainable": turn.trainable and kind == "main",
        "messages": codec.plain(turn.prompt.messages),
        "id": turn.id,
        "user": turn.user,
        "at": turn.at,
        "version": completion.version,
    }
    if turn.prompt.tools:
        out["tools"] = codec.plain(turn.prompt.tools)
    if verdict:
        out |= {"score": verdict.score, "hints": [asdict(hint) for hint in verdict.hints]}
    if tokens:
        out["tokens"] = {
            "prompt": list(completion.prompt_tokens),
            "reply": list(completion.reply_tokens),
            "logprobs": list(completion.logprobs),
        }
    return out


def _bare(reply: Message) -> Message:
    return Message(role="assistant", content=reply.content)


def training_set(ledger: LedgerReader) -> Iterator[Json]:
    """Yield a line for each main turn that has a verdict: its messages with the reply, the score, the hints."""
    for session, user in ledger.sessions():
        for name in ledger.session(session, user):
            outcome, verdict = ledger.outcome(name), ledger.verdict(name)
            if outcome is None or verdict is None or outcome.kind != "main":
                continue
            turn = ledger.turn(name)
            yield {
                "id": turn.id,
                "messages": codec.plain((*turn.prompt.messages, turn.completion.reply)),
                "tools": codec.plain(turn.prompt.tools),
                "score": verdict.score,
                "hints": [asdict(hint) for hint in verdict.hints],
                "next_state": codec.plain(outcome.next_state),
            }


def write_lines(rows: Iterable[Json], file: IO[str]) -> int:
    """Write rows as JSONL; return their number."""
    count = 0
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
        count += 1
    return count
