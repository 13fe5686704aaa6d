"""The value types for settings, and the base class for a settings group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


def _location(path: Path) -> Path:
    """Return an absolute path, the same in every process and row; a relative one starts at the working directory."""
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"must be a path that can be read: {error}") from error


def plugin_file(name: Any) -> str | None:
    """Return the file in a plugin's address, ``file.py`` or ``file.py:attribute``; None for any other address."""
    if not isinstance(name, str):
        return None
    if name.endswith(".py"):
        return name
    file, _, attribute = name.rpartition(":")
    return file if file.endswith(".py") and (not attribute or attribute.isidentifier()) else None


def _plugin(name: str) -> str:
    """Make the file in a plugin's address absolute, for the same reason; return any other address unchanged."""
    file = plugin_file(name)
    return name if file is None else f"{_location(Path(file))}{name.removeprefix(file)}"


def weights(name: str) -> str:
    """Return the absolute path of a folder or a weights file; return a Hugging Face id or built-in name unchanged."""
    path = Path(name)
    here = name.startswith((".", "/", "~")) or (name != "embedded" and path.exists())
    return str(_location(path)) if here else name


def _address(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/@]+(/[^\s@]*)?", url):
        raise ValueError("must be an http:// or https:// address without a user name or password in it")
    return url.rstrip("/")


def _database_url(url: SecretStr) -> SecretStr:
    if not re.match(r"postgres(ql)?://", url.get_secret_value(), re.IGNORECASE):
        raise ValueError("must begin with postgresql://, such as postgresql://NAME@HOST:5432/DATABASE")
    return url


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError("must be one of auto, cpu, mps, cuda or cuda:N")
    return name


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("must be the name of an environment variable, not the key itself")
    return name


def _model_place(place: str) -> str:
    if not place.strip():
        raise ValueError("must be a folder, a Hugging Face id or an address")
    return _address(place) if place.lower().startswith(("http:", "https:")) else weights(place)


def _store(place: str) -> str:
    return place.rstrip("/") if "://" in place else str(_location(Path(place)))


def _number_as_text(share: Any) -> Any:
    return str(share) if isinstance(share, int) and not isinstance(share, bool) else share


def _sharing(share: str) -> str:
    if not re.fullmatch(r"all|none|[2-9]|[1-9]\d{1,5}", share):
        raise ValueError('must be "all", "none", or the number of people who must agree, from 2')
    return share


Location = Annotated[Path, AfterValidator(_location)]
Plugin = Annotated[str, AfterValidator(_plugin)]
Weights = Annotated[str, AfterValidator(weights)]
Address = Annotated[str, AfterValidator(_address)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]
Variable = Annotated[str, AfterValidator(_variable)]
Device = Annotated[str, AfterValidator(_device)]
Sharing = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_sharing)]
StoreAddress = Annotated[str, AfterValidator(_store)]
ModelPlace = Annotated[str, AfterValidator(_model_place)]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
Options = Mapping[str, Any]
Share = int | tuple[int, ...]


class Section(BaseModel):
    """A settings group: frozen, with a default for every setting and no unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, str) and value == "" and field.default is None:
            return None
        if isinstance(value, bool) and field.annotation not in (bool, bool | None):
            raise PydanticCustomError("wrong_kind", "a switch is no number")
        return value
