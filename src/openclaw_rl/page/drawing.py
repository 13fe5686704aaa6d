"""The views as drawn for a person, from the ledger, the person's rights and the address."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from starlette.datastructures import QueryParams

from openclaw_rl.errors import NotInLedger
from openclaw_rl.page.charts import curves_view
from openclaw_rl.page.door import Person
from openclaw_rl.page.environments import environments_view, episodes_view, replay_view
from openclaw_rl.page.html import Html
from openclaw_rl.page.learning import Lessons, learning_view
from openclaw_rl.page.sessions import FILTERS, SessionQuery, session_view, sessions_view, turn_view
from openclaw_rl.page.talk import read_talk, talk_view
from openclaw_rl.page.versions import VersionList, VersionStory, version_view, versions_view
from openclaw_rl.ports import GateDecision
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Turn
from openclaw_rl.views import browse, environments, learning, lineage, status, transcripts
from openclaw_rl.views.browse import Curve
from openclaw_rl.views.environments import picture
from openclaw_rl.views.learning import Correction

CORRECTIONS, VERSIONS, SESSIONS, TURNS = 20, 50, 30, 100
"""items per page in each view"""
WAITING = 1000
"""limit for the number of waiting turns shown"""


class Drawing:
    """A person's views, at one moment of the ledger."""

    def __init__(
        self,
        ledger: LedgerReader,
        person: Person,
        query: QueryParams,
        alarms: Sequence[str] = (),
        live: Sequence[Curve] = (),
    ) -> None:
        """``live`` are curves of serving, which the ledger does not contain."""
        self._ledger = ledger
        self._person = person
        self._query = query
        self._alarms = alarms
        self._live = live

    def draw(self, view: str) -> Html:
        """Draw a view by its name."""
        views: Mapping[str, Draw] = {
            "talk": Drawing.talk,
            "learning": Drawing.learning,
            "versions": Drawing.versions,
            "curves": Drawing.curves,
            "environments": Drawing.environments,
            "sessions": Drawing.sessions,
        }
        return views[view](self)

    def talk(self) -> Html:
        """Draw a conversation, by its session or new."""
        return talk_view(read_talk(self._ledger, self._person, self._query.get("session")))

    def learning(self) -> Html:
        """Draw all corrections, or one turn's."""
        ledger, person = self._ledger, self._person
        notes = [note for note in ledger.notes(person.scope) if note.state not in ("replaced", "declined", "removed")]
        turn, before = self._query.get("turn"), self._number("before")
        corrections, older = self._corrections(turn, before)
        lessons = Lessons(
            corrections=corrections,
            notes=notes,
            notes_on=ledger.notes_enabled(person.user),
            whose=person.scope is None
            and len({note.user for note in notes} | {correction.user for correction in corrections}) > 1,
            unheard=() if turn or before else learning.unheard(ledger, person.user, limit=5),
            more=older,
            one=turn is not None,
        )
        return learning_view(lessons, learning.progress(ledger).sentence)

    def _corrections(self, turn: str | None, before: int | None) -> tuple[list[Correction], str | None]:
        if turn is not None:
            self._own(turn)
            return [learning.correction(self._ledger, turn)], None
        corrections = learning.corrections(self._ledger, self._person.scope, limit=CORRECTIONS, before=before)
        return corrections, f"/learning?before={corrections[-1].seq}" if len(corrections) == CORRECTIONS else None

    def versions(self) -> Html:
        """Draw the newest versions, or one."""
        ledger = self._ledger
        if (number := self._number("version")) is not None:
            return version_view(self._story(number))
        lines = browse.version_lines(ledger, limit=VERSIONS)
        version_list = VersionList(
            lines=lines, paused=ledger.paused(), back=browse.rollback_target(ledger), steers=self._person.admin
        )
        return versions_view(version_list)

    def _story(self, number: int) -> VersionStory:
        """Return a version's story; its training turns are included for an admin only, since they are private."""
        ledger = self._ledger
        version = ledger.version(number)
        decisions = ledger.gate_decisions(number)
        line = browse.VersionLine(
            version=version,
            live=ledger.last_live() == number,
            pinned=number in ledger.pinned(),
            decision=decisions[-1] if decisions else None,
            reception=None,
        )
        admin = self._person.admin
        return VersionStory(
            line=line,
            history=ledger.history(number),
            decisions=decisions if admin else [_without_talk(ruling) for ruling in decisions],
            step=lineage.step_behind(ledger, version) if admin and version.step is not None else None,
        )

    def curves(self) -> Html:
        """Draw training figures; those on replies are the person's own, or all users' for an admin."""
        drops, waiting = self._ledger.drop_counts(), self._ledger.waiting_for_judge(WAITING)
        count = f"{waiting}" if waiting < WAITING else f"{WAITING:,} or more"
        drawn = [*browse.curves(self._ledger, self._person.scope), *self._live]
        return curves_view(drawn, drops, self._alarms, waiting=count)

    def environments(self) -> Html:
        """Draw the results of tasks; for an admin, episodes and each of their steps."""
        name, task, session = (self._query.get(key) for key in ("env", "task", "session"))
        if name is None:
            tasks = environments.tasks_played(self._ledger)
            names = dict.fromkeys(line.environment for line in tasks)
            wins = [(environment, environments.wins(self._ledger, environment)) for environment in names]
            greedy = environments.greedy_wins(self._ledger)
            return environments_view(tasks, wins, greedy, replays=self._person.admin)
        if not self._person.admin:
            raise NotInLedger("there is no episode of yours")
        if session is not None:
            steps = environments.episode(self._ledger, name, session)
            ended = environments.episodes(self._ledger, name, None, session=session)
            return replay_view(name, session, steps, ended[0] if ended else None)
        listed = environments.episodes(self._ledger, name, task)
        return episodes_view(name, task, listed, environments.wins(self._ledger, name, task))

    def screen(self) -> tuple[str, bytes]:
        """Return a turn's picture, or one that an environment kept: its type and its bytes."""
        if (name := self._query.get("kept")) is not None:
            content = picture(self._ledger.root, name) if self._person.admin else None
            if content is None:
                raise NotInLedger(f"there is no screen {name[:80]!r}")
            return "image/png", content
        part: environments.Part = "after" if self._query.get("part") == "after" else "before"
        turn = self._own(self._query.get("turn", ""))
        return environments.screen(self._ledger, turn, part, self._number("number") or 0)

    def sessions(self) -> Html:
        """Draw a list, a session or a turn."""
        if (turn := self._query.get("turn")) is not None:
            return turn_view(self._own(turn), status.turn(self._ledger, turn))
        if (session := self._query.get("session")) is not None:
            user = self._person.scope or self._query.get("user") or self._person.user
            turns = browse.session_turns(self._ledger, session, user, limit=TURNS)
            if not turns:
                raise NotInLedger(f"there is no session {session!r} of {user}")
            shown_turns = [(turn, status.turn(self._ledger, turn.id)) for turn in turns]
            going = self._ledger.deletable(self._ledger.turns_of(session, user), user)
            return session_view(session, user, shown_turns, own=user == self._person.user, going=going)
        return self._session_list()

    def _session_list(self) -> Html:
        ledger, person = self._ledger, self._person
        query = SessionQuery(
            words=self._query.get("q", "").strip()[:200],
            only=self._query.get("only", "") if self._query.get("only") in FILTERS else "",
            user=self._query.get("user", "") if person.admin else "",
            before=self._number("before"),
        )
        result = browse.sessions(
            ledger,
            person.scope or query.user or None,
            limit=SESSIONS,
            before=query.before,
            words=query.words,
            keep=FILTERS[query.only][1],
        )
        users = ledger.users() if person.admin else []
        return sessions_view(result, query, users if len(users) > 1 else ())

    def export(self) -> str:
        """Return a session as a line of JSON."""
        session = self._query.get("session", "")
        user = self._person.scope or self._query.get("user") or self._person.user
        if not browse.session_turns(self._ledger, session, user, limit=1):
            raise NotInLedger(f"there is no session {session!r} of {user}")
        return json.dumps(transcripts.export_session(self._ledger, session, user), ensure_ascii=False) + "\n"

    def _own(self, name: str) -> Turn:
        turn = self._ledger.turn(status.turn_id(name))
        if self._person.scope not in (None, turn.user):
            raise NotInLedger(f"there is no turn {name!r} of yours")
        return turn

    def _number(self, name: str) -> int | None:
        value = self._query.get(name, "")
        return int(value) if value.isdecimal() and len(value) < 19 else None


def _without_talk(decision: GateDecision) -> GateDecision:
    """Return a decision without the examples from people's own conversations."""
    examples = [example for example in decision.evidence.get("examples", ()) if example.get("turn") is None]
    return replace(decision, evidence={**decision.evidence, "examples": examples})


Draw = Callable[[Drawing], Html]
