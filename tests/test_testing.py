"""The fakes that ship: each example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from openclaw_rl import testing

MODULES = [f"openclaw_rl.testing.{found.name}" for found in pkgutil.iter_modules(testing.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_every_example_runs(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert (failed, tried > 0) == (0, True)
