"""From an address to what lies there: ``module:attribute``, ``file.py:attribute``, or a bare file looked through."""

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
    """What ``module:attribute`` or ``file.py:attribute`` leads to; raises PluginError that says which half is wrong.

    A file is loaded once per process. ``kind`` says in errors what the target is for.
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
    """The address of the one plugin of this kind in a bare file: under a published name, else by its shape.

    Raises PluginError with what was found and what is expected where there is none, or more than one.
    """
    module = _from_file(kind, place)
    named = [name for name in PUBLISHED[kind] if hasattr(module, name)]
    fitting = [name for name in named if not early_faults(kind, getattr(module, name))]
    if not named:
        fitting = [name for name, thing in _own(module).items() if _could_be(kind, thing)]
    found = fitting or named
    if len(found) == 1:
        return f"{place}:{found[0]}"
    if found:
        raise PluginError(
            f"{kind}: {place} has several: {', '.join(found)}", remedy=f"say which: '{place}:{found[0]}', for one"
        )
    known, has = " or ".join(PUBLISHED[kind]), ", ".join(_own(module)) or "nothing of its own"
    raise PluginError(
        f"{kind}: nothing in {place} can be taken for one; it has {has}",
        remedy=f"call it {known}, or say which it is: '{place}:NAME'",
    )


def _own(module: Any) -> dict[str, Any]:
    """The public classes and functions that a file defines itself."""
    return {
        name: thing
        for name, thing in vars(module).items()
        if not name.startswith("_") and callable(thing) and getattr(thing, "__module__", None) == module.__name__
    }


def _could_be(kind: Kind, thing: Any) -> bool:
    """Whether it fits by its shape alone; a function that builds something may be anything, and never does."""
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
    except Exception as error:  # the user's own file may fail in any way: say where, and keep the trace
        if isinstance(error, OpenClawError):
            raise
        raise PluginError(f"{kind}: {path} could not be loaded: {type(error).__name__}: {error}") from error


def _module_at(path: Path) -> ModuleType:
    """A file as a module of its own name, loaded once; what it imports from its own folder likewise."""
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
    """The ``import`` of a file in ``folder``, which finds what lies beside it as a script would.

    It is the file's own: nothing is added to ``sys.path``, so that plugins of two folders may each have a `helpers.py`.
    """

    def import_(
        name: str, globals_: Any = None, locals_: Any = None, fromlist: Sequence[str] = (), level: int = 0
    ) -> ModuleType:
        first, _, rest = name.partition(".")
        beside = _beside(folder, first) if level == 0 else None
        if beside is not None:
            first = _module_at(beside).__name__
        return builtins.__import__(f"{first}.{rest}" if rest else first, globals_, locals_, fromlist, level)

    return import_


def _beside(folder: Path, name: str) -> Path | None:
    """The file of a module or package in this folder; what Python or this package calls so is not overridden."""
    if not name or name in sys.stdlib_module_names or name == "openclaw_rl":
        return None
    places = (folder / name / "__init__.py", folder / f"{name}.py")
    return next((place for place in places if place.is_file()), None)
