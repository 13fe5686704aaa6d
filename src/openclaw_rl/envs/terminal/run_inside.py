"""Runs the test functions of files, one after the other, and writes how many passed. Its text runs inside a sandbox,

python3 -I - PLACE FILE ...

where nothing of this package is, nor anything that would have to be installed.
"""

import importlib.util
import inspect
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any


def given(function: Any) -> dict[str, pathlib.Path] | None:
    """What a function is called with: a folder of its own for tmp_path. None where it wants what nobody has."""
    names = inspect.signature(function).parameters
    if not set(names) <= {"tmp_path"}:
        return None
    return {name: pathlib.Path(tempfile.mkdtemp()) for name in names}


def functions(module: Any) -> Iterator[Any]:
    """Its tests, those of classes among them."""
    for name, found in list(vars(module).items()):
        if name.startswith("test") and inspect.isfunction(found):
            yield found
        elif name.startswith("Test") and inspect.isclass(found):
            for method, _ in inspect.getmembers(found, inspect.isfunction):
                if method.startswith("test"):
                    yield getattr(found(), method)


def passes(function: Any) -> bool:
    """Whether it ends without raising anything."""
    try:
        arguments = given(function)
        if arguments is None:
            return False
        function(**arguments)
    except BaseException as error:  # a test may end in anything, an exit included: it has not passed
        print(f"{function.__name__}: {type(error).__name__}: {error}")
        return False
    return True


def results(path: str) -> list[bool]:
    """Of each test of a file; a file that cannot be loaded is one that fails."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # a file of tests that cannot be read is one that fails
        print(f"{path}: {type(error).__name__}: {error}")
        return [False]
    return [passes(function) for function in functions(module)]


if __name__ == "__main__":
    place, *paths = sys.argv[1:]
    counted = [one for path in paths for one in results(path)]
    pathlib.Path(place).write_text(json.dumps({"passed": sum(counted), "tests": len(counted)}))
