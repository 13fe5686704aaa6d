"""What environments share whose tasks come from a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from openclaw_rl.envs.actions import ActionForm
from openclaw_rl.envs.ladders import Split

TEXT_EXAMPLES = 2
"""solved tasks in a prompt of the text form: a model that calls no tools does little without"""


class TaskSet(Protocol):
    """A set of tasks, split into those that train and those that are held out."""

    def ids(self, split: Split) -> Sequence[str]: ...

    def rung(self, task: str) -> str: ...

    def instruction(self, task: str) -> str: ...


S = TypeVar("S", bound=TaskSet)


class SourcedEnv(Generic[S]):
    """The part of an `Env` that says which tasks there are. Its ``_examples`` of them are shown solved in a prompt."""

    def __init__(self, *, name: str, source: S, form: ActionForm, examples: int | None) -> None:
        """``examples`` None: two in the text form, else none."""
        self.name = name
        self._source = source
        self._form = form
        self._examples = TEXT_EXAMPLES * (form == "text") if examples is None else examples

    def tasks(self) -> Sequence[str]:
        return self._source.ids("train")

    def held_out(self) -> Sequence[str]:
        return self._source.ids("held-out")

    def rung(self, task: str) -> str:
        return self._source.rung(task)

    def instruction(self, task: str) -> str:
        return self._source.instruction(task)
