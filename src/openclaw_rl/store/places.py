"""Where a ledger lies: in a file, or in a database of a PostgreSQL server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_PASSWORD: Final = re.compile(r"(?<=//)([^:/@?]*):[^@/]*(?=@)|([?&]password)=[^&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """A database by its URL, and the directory of the run that it belongs to.

    >>> str(ServerPlace(url="postgresql://ann:secret@db:5432/run?sslmode=require", root=Path("run")))
    'postgresql://ann@db:5432/run?sslmode=require'
    """

    url: str = field(repr=False)
    root: Path

    def __str__(self) -> str:
        return _PASSWORD.sub(lambda found: found[1] or (f"{found[2]}=hidden" if found[2] else ""), self.url)


Place = Path | ServerPlace
AnyPlace = str | Path | ServerPlace


def is_url(name: str) -> bool:
    """Whether a name is the URL of a database."""
    return _URL.match(name) is not None


def place_of(name: AnyPlace) -> Place:
    """The place that a person named: the path of a file, or the URL of a database, whose run is here."""
    if isinstance(name, str) and is_url(name):
        return ServerPlace(url=name, root=Path.cwd())
    return name if isinstance(name, ServerPlace) else Path(name).absolute()


def root_of(place: Place) -> Path:
    """The directory of the run that a ledger belongs to, where its versions lie."""
    return place.root if isinstance(place, ServerPlace) else place.parent
