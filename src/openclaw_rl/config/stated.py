"""Names of the field that lead to no setting, because what they ask for is fixed: each is answered, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from openclaw_rl.config.values import weights

TEACHER_PLACE: Final = "trainer"
STATED: Final[Mapping[str, str]] = {
    "REF_LOAD": "the reference of the KL penalty is always the base model, policy.model, in Hugging Face form",
    "OPENCLAW_COMBINE_OPD_TEACHER_SOURCE": f"the teacher always runs in the {TEACHER_PLACE}",
}
"""each name and what is fixed"""


def notes(environ: Mapping[str, str], *, model: str) -> Iterator[str]:
    """What is said of the names that are set and change nothing; ``model`` is the base model."""
    if _reference(environ) == model:
        yield f"environment REF_LOAD is the base model: {STATED['REF_LOAD']}"
    name = "OPENCLAW_COMBINE_OPD_TEACHER_SOURCE"
    place = environ.get(name, "").strip()
    if place and place != TEACHER_PLACE:
        yield f"environment {name} = {place} changes nothing: {STATED[name]}"


def problems(environ: Mapping[str, str], *, model: str) -> Iterator[str]:
    """Why a name that is set cannot be followed, with what to do."""
    found = _reference(environ)
    if found is None or found == model:
        return
    folder = Path(found)
    why = f"names other weights than policy.model, which is {model}"
    if folder.is_absolute() and not folder.exists():
        why = "is not there"
    elif folder.is_dir() and not (folder / "config.json").is_file():
        why = "is no model in Hugging Face form (it has no config.json)"
    yield f"environment REF_LOAD = {found}: {why}; {STATED['REF_LOAD']}: unset it, or name that model"


def _reference(environ: Mapping[str, str]) -> str | None:
    given = environ.get("REF_LOAD", "").strip()
    return weights(given) if given else None
