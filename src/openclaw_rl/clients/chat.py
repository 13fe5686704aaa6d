"""A conversation with a running server, from a terminal or a pipe.

    Line    the server at the other end: asks, streams, gives feedback
    Talk    the conversation: takes what a person types, words or a command, and writes what comes of it

What a person sees of a correction's way through the ledger is put into words by `told`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2

from openclaw_rl.errors import BackendDown, BackendError, NotAllowed, OpenClawError, RequestError
from openclaw_rl.types import new_id

PATIENCE = 330.0
"""seconds without a sign of life after which a reply is given up; a server that restarts holds requests"""

Write = Callable[[str], None]
Look = Callable[[str], Sequence[str]]
"""what became of a turn, line by line"""


@dataclass(slots=True)
class Answer:
    """A reply as it comes: its turn and version are known before its first words."""

    turn: str
    version: int | None
    words: Iterator[str]


class Line:
    """The server at ``url`` (up to /v1). Raises BackendDown when it does not answer, RequestError when it refuses."""

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.Client(headers=headers, timeout=httpx2.Timeout(PATIENCE, connect=10.0))
        self._model = model

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def live(self) -> tuple[str, int | None]:
        """The model's name and the number of its live version, None where the server does not say."""
        body = self._call("GET", "/models")
        try:
            first = body["data"][0]
            return str(first["id"]), first.get("version")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise BackendError(
                f"what answers at {self.url} lists no models", remedy="give the address that 'openclaw-rl up' prints"
            ) from error

    @contextmanager
    def ask(self, messages: Sequence[Mapping[str, str]], *, session: str) -> Iterator[Answer]:
        """The reply, once it has begun; leaving early stops it."""
        body = {"model": self._model or "", "messages": list(messages), "stream": True}
        headers = {"x-session-id": session, "x-turn-type": "main"}
        stream = self._client.stream("POST", f"{self.url}/chat/completions", json=body, headers=headers)
        with _reaching(self.url), stream as response:
            if response.status_code >= 400:
                response.read()
                raise _refusal(response)
            version = response.headers.get("x-openclaw-rl-version", "")
            turn = response.headers.get("x-openclaw-rl-turn", "")
            yield Answer(turn, int(version) if version.isdecimal() else None, _words(response.iter_lines()))

    def feedback(self, turn: str, **said: str) -> None:
        """Say something of a turn outright: ``thumb`` up or down, ``comment``."""
        self._call("POST", "/feedback", {"turn": turn, **said})

    def end(self, session: str) -> None:
        """Say that nothing more will come of a session, so that its last turn need not wait."""
        self._call("POST", f"/sessions/{quote(session, safe='')}/end", {})

    def _call(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        with _reaching(self.url):
            response = self._client.request(method, f"{self.url}{path}", json=body)
        if response.status_code >= 400:
            raise _refusal(response)
        try:
            return response.json()
        except ValueError as error:
            raise BackendError(
                f"what answers at {self.url} is no OpenClaw-RL server",
                remedy="give the address that 'openclaw-rl up' prints, with /v1 at its end",
            ) from error


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Puts a broken line into words, with a remedy."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise BackendDown(
            f"no server answers at {url}",
            remedy="start one with 'openclaw-rl up', or say where it is with --url http://HOST:PORT/v1",
        ) from error
    except httpx2.TransportError as error:
        raise BackendDown(f"the line to {url} broke: {type(error).__name__}", remedy="say it again") from error


def _refusal(response: httpx2.Response) -> OpenClawError:
    what = _message(response)
    if response.status_code in (401, 403):
        return NotAllowed(what, remedy="give the server's key with --key or OPENCLAW_API_KEY")
    if response.status_code >= 500:
        return BackendDown(what)
    return RequestError(what, status=response.status_code)


def _message(response: httpx2.Response) -> str:
    try:
        return str(json.loads(response.text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code} from {response.url}"


def _words(lines: Iterator[str]) -> Iterator[str]:
    """The text in a stream of chunks; raises when the stream says that it failed."""
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            raise BackendDown(f"the reply broke off: {chunk['error'].get('message')}")
        for choice in chunk.get("choices", ()):
            if content := choice.get("delta", {}).get("content"):
                yield content


class Talk:
    """One conversation after another. ``say`` writes replies and what was asked for, ``note`` what happens meanwhile.

    A line that begins with / is a command; a person who wants to say such a line puts a space before it.
    """

    def __init__(self, line: Line, *, say: Write, note: Write, look: Look) -> None:
        self._line = line
        self._say, self._note, self._look = say, note, look
        self._messages: list[dict[str, str]] = []
        self._session = new_id()
        self._turns: list[str] = []
        self._corrected: str | None = None
        self._version: int | None = None
        self._commands: dict[str, tuple[str, Callable[[str], None]]] = {
            "/good": ("the last reply was good", lambda _: self._thumb("up")),
            "/bad": ("the last reply was bad", lambda _: self._thumb("down")),
            "/fix": ("TEXT: the last reply was bad, and what would have made it better", self._fix),
            "/why": ("what became of the last correction", lambda _: self._why()),
            "/version": ("which version answers", lambda _: self._which()),
            "/new": ("begin a new conversation", lambda _: self.end()),
            "/help": ("this list", lambda _: self._help()),
            "/quit": ("end; so does the end of the input", lambda _: None),
        }

    def hear(self, typed: str) -> bool:
        """Act on one line; False when it was the last."""
        word, _, rest = typed.partition(" ")
        if word == "/quit":
            return False
        if word.startswith("/"):
            self._command(word, rest.strip())
        elif typed.strip():
            self._ask(typed.strip())
        return True

    def greet(self) -> None:
        """Say who is at the other end; raises when nobody is."""
        model, self._version = self._line.live()
        self._note(f"{model} at {self._line.url}" + _at(self._version) + "; /help lists the commands")

    def end(self) -> None:
        """Begin anew; the conversation so far is over."""
        if self._turns:
            self._line.end(self._session)
        self._messages, self._turns, self._session = [], [], new_id()

    def _command(self, word: str, rest: str) -> None:
        if word not in self._commands:
            self._note(f"there is no {word}; known: {', '.join(self._commands)}")
            return
        self._commands[word][1](rest)

    def _ask(self, text: str) -> None:
        asked = [*self._messages, {"role": "user", "content": text}]
        said = ""
        try:
            with self._line.ask(asked, session=self._session) as answer:
                self._take_over(answer.version)
                for words in answer.words:
                    self._say(words)
                    said += words
        finally:
            if said:
                self._say("\n")
        self._turns.append(answer.turn)
        self._messages = [*asked, {"role": "assistant", "content": said}]

    def _take_over(self, version: int | None) -> None:
        """Tell when other weights answer than before."""
        if version is not None and self._version is not None and version != self._version:
            self._note(f"version {version} has taken over (before: {self._version})")
        self._version = version if version is not None else self._version

    def _thumb(self, thumb: str) -> None:
        self._feedback({"thumb": thumb}, f"noted: the last reply was {'good' if thumb == 'up' else 'bad'}")

    def _fix(self, text: str) -> None:
        if not text:
            self._note("say what would have made it better: /fix Keep it under 30 words.")
            return
        self._feedback({"thumb": "down", "comment": text}, "noted as a correction; /why says what becomes of it")

    def _feedback(self, said: Mapping[str, str], told: str) -> None:
        if not self._turns:
            self._note("there is no reply yet in this conversation")
            return
        self._line.feedback(self._turns[-1], **said)
        self._corrected = self._turns[-1]
        self._note(told)

    def _why(self) -> None:
        """A correction is a command, or simply what was said after a reply: then it is about the reply before."""
        turn = self._corrected or (self._turns[-2] if len(self._turns) > 1 else None)
        if turn is None:
            self._note("nothing has been corrected yet: answer a reply, or say /good, /bad or /fix TEXT")
            return
        for line in self._look(turn):
            self._say(f"{line}\n")

    def _which(self) -> None:
        model, live = self._line.live()
        before = f", the last reply came from version {self._version}" if self._turns else ""
        self._say(f"{model}{_at(live)}{before}\n")

    def _help(self) -> None:
        for word, (text, _) in self._commands.items():
            self._say(f"{word:<9} {text}\n")


def _at(version: int | None) -> str:
    return "" if version is None else f", version {version}"


def told(turn: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The way of one turn, from what `review.views` show: how it was judged, what it taught, which version knows it."""
    said = turn["prompt"]["messages"][-1].get("content", "")
    lines = [f"turn {turn['id']}, answered by version {turn['version']}: {_short(said)}"]
    verdict = turn["verdict"]
    if verdict is None:
        waits = "for what comes after it" if turn["kind"] is None else "for the judge"
        return [*lines, f"not judged yet: it waits {waits}"]
    score = "no opinion" if verdict["score"] is None else f"{verdict['score']:+g}"
    lines.append(f"judged {score} ({verdict['source']})" + (f": {verdict['note']}" if verdict["note"] else ""))
    lines += [f"hint ({hint['kind']}): {hint['text']}" for hint in verdict["hints"]]
    return [*lines, _use(turn, versions)]


def _use(turn: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> str:
    if turn["step"] is not None:
        made = [version for version in versions if version["step"] == turn["step"]]
        if not made:
            return f"used by step {turn['step']}, which made no version"
        return f"used by step {turn['step']}, which made version {made[0]['number']} ({made[0]['state']})"
    if turn["dropped"]:
        return f"not trained: {turn['dropped']['reason']} {turn['dropped']['detail']}".rstrip()
    return "not trained yet: it waits for a batch"


def _short(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
