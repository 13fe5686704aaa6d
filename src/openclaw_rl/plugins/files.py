"""Loads plugins from an address: ``module:attribute``, ``file.py:attribute``, or a bare file that is searched."""

from __future__ import annotations

import builtins
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from openclaw_rl.errors import MissingExtra, OpenClawError, PluginError
from openclaw_rl.plugins.shapes import BUILT, PUBLISHED, Kind, early_faults

_EXTRA_OF = {"torch": "local", "transformers": "local", "peft": "local", "safetensors": "local", "gguf": "local"}


def load(kind: str, target: str) -> Any:
    """Return the object at ``module:attribute`` or ``file.py:attribute``; raises PluginError that names the wrong half.

    A file is loaded once per process. ``kind`` names the plugin's purpose in errors.
    """
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise PluginError(f"{kind} {target!r} is no address", remedy="write 'module:attribute' or 'file.py:attribute'")
    module = _from_file(kind, place) if place.endswith(".py") else _from_module(kind, place)
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PluginError(f"{place} has no {attribute!r}, named as {kind} {target!r}{hint}")
    return getattr(module, attribute)


def find(kind: Kind, place: str) -> str:
    """Return the address of the only plugin of this kind in a bare file: by a published name, else by its shape.

    Raises PluginError with the matches and the expected names if there is no match, or more than one.
    """
    module = _from_file(kind, place)
    named = [name for name in PUBLISHED[kind] if hasattr(module, name)]
    fitting = [name for name in named if not early_faults(kind, getattr(module, name))]
    if not named:
        fitting = [name for name, thing in _own(module).items() if _could_be(kind, thing)]
    matches = fitting or named
    if len(matches) == 1:
        return f"{place}:{matches[0]}"
    if matches:
        raise PluginError(
            f"{kind}: {place} has several: {', '.join(matches)}", remedy=f"say which: '{place}:{matches[0]}', for one"
        )
    expected, has = " or ".join(PUBLISHED[kind]), ", ".join(_own(module)) or "nothing of its own"
    raise PluginError(
        f"{kind}: nothing in {place} can be taken for one; it has {has}",
        remedy=f"call it {expected}, or say which it is: '{place}:NAME'",
    )


def _own(module: Any) -> dict[str, Any]:
    """Return the public classes and functions that a file itself defines."""
    return {
        name: thing
        for name, thing in vars(module).items()
        if not name.startswith("_") and callable(thing) and getattr(thing, "__module__", None) == module.__name__
    }


def _could_be(kind: Kind, thing: Any) -> bool:
    """Return True if the shape alone fits; False for a factory function, whose result is unknown."""
    if kind in BUILT and kind != "judge" and not isinstance(thing, type):
        return False
    return not early_faults(kind, thing)


def _from_module(kind: str, place: str) -> Any:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _EXTRA_OF:
            raise MissingExtra(missing, _EXTRA_OF[missing]) from error
        raise PluginError(f"{kind}: no module named {error.name!r}, named as {place!r}") from error


def _from_file(kind: str, place: str) -> Any:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise PluginError(
            f"{kind}: there is no file {path}", remedy="give it as 'path/to/file.py' or 'path/to/file.py:attribute'"
        )
    try:
        return _module_at(path)
    except Exception as error:  # the user's file may raise anything: name the file, and chain the traceback
        if isinstance(error, OpenClawError):
            raise
        raise PluginError(f"{kind}: {path} could not be loaded: {type(error).__name__}: {error}") from error


def _module_at(path: Path) -> ModuleType:
    """Load a file once as a module with a unique name; imports from its folder load the same way."""
    name = f"openclaw_rl_plugin_{abs(hash(str(path)))}"
    if name in sys.modules:
        return sys.modules[name]
    inside = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inside)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["__builtins__"] = vars(builtins) | {"__import__": _importer(path.parent)}
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _importer(folder: Path) -> Callable[..., ModuleType]:
    """Return the ``import`` function for a file in ``folder``, which finds neighbouring files as a script would.

    It applies to that file alone: ``sys.path`` is unchanged, so that plugins in two folders may each have a
    `helpers.py`.
    """

    def import_(
        name: str, globals_: Any = None, locals_: Any = None, fromlist: Sequence[str] = (), level: int = 0
    ) -> ModuleType:
        first, _, remainder = name.partition(".")
        beside = _beside(folder, first) if level == 0 else None
        if beside is not None:
            first = _module_at(beside).__name__
        return builtins.__import__(f"{first}.{remainder}" if remainder else first, globals_, locals_, fromlist, level)

    return import_


def _beside(folder: Path, name: str) -> Path | None:
    """Return a module's or package's file in this folder; None for names in the standard library or this package."""
    if not name or name in sys.stdlib_module_names or name == "openclaw_rl":
        return None
    places = (folder / name / "__init__.py", folder / f"{name}.py")
    return next((place for place in places if place.is_file()), None)
