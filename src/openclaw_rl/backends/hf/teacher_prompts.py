"""What a batch has to train on: each sample's prompts as ids, and why a sample has nothing to give."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.errors import RequestError
from openclaw_rl.types import Prompt, Sample, Tokens

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TeacherPrompts:
    """``views`` has a row for each sample: the ids of its teachers' prompts, None where one cannot be had.

    ``samples`` have their own prompt's ids, also those whose reply was sampled under another prompt.
    ``dropped`` says for each turn that cannot be trained at all what is wrong with it.
    """

    samples: list[Sample] = field(default_factory=list)
    views: list[list[Tokens | None]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """How many prompts could not be rendered or do not fit."""
        return sum(view is None for row in self.views for view in row)

    def kept(self) -> tuple[list[Sample], list[list[Tokens | None]]]:
        """The samples to train on, and their views."""
        pairs = zip(self.samples, self.views, strict=True)
        good = [(sample, row) for sample, row in pairs if sample.turn not in self.dropped]
        return [sample for sample, _ in good], [row for _, row in good]


def render_teachers(
    chat: ChatTemplate, samples: Sequence[Sample], *, most: int, room: int | None, vocabulary: int
) -> TeacherPrompts:
    """Render every teacher's prompt, at most ``most`` of each turn, into ``room`` tokens together with the reply."""
    found = TeacherPrompts()
    for sample in samples:
        views: list[Tokens | None] = []
        why = ""
        for prompt in sample.teachers[: most if sample.rehearses is None else 1]:
            try:
                views.append(_view(chat, prompt, sample, room))
            except RequestError as error:
                log.warning("teacher of turn %s not rendered: %s", sample.turn, error)
                views.append(None)
                why = error.what
        found.views.append(views)
        try:
            own = sample.prompt_tokens or _view(chat, sample.prompt, sample, room)
        except RequestError as error:
            own, found.dropped[sample.turn] = None, f"its prompt without the note cannot be had: {error.what}"
        found.samples.append(replace(sample, prompt_tokens=own))
        if own is None:
            continue
        if max(*own, *sample.reply_tokens) >= vocabulary:
            found.dropped[sample.turn] = "a token id lies outside the model's vocabulary"
        elif sample.advantage is None and views and not any(views):
            found.dropped[sample.turn] = f"its hinted prompt cannot be had: {why}"
    return found


def _view(chat: ChatTemplate, prompt: Prompt, sample: Sample, room: int | None) -> Tokens:
    ids = chat.encode(prompt)
    if room is not None and len(ids) + len(sample.reply_tokens) > room:
        raise RequestError(f"{len(ids)} tokens and a reply of {len(sample.reply_tokens)} do not fit {room}")
    return ids
