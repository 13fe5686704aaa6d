"""A plugin of pytest that writes each test's verdict as it comes. Its text runs inside a sandbox,

python -m pytest -p openclaw_rl_verdicts --openclaw-rl-verdicts FILE ...

where nothing of this package is.
"""

import json
import pathlib
from typing import Any

OPTION = "--openclaw-rl-verdicts"


class Writer:
    """One line to a verdict, so that a run that is stopped has told of all before."""

    def __init__(self, place: str) -> None:
        self._place = pathlib.Path(place)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test has passed when its own run has, or fails as was expected; what goes wrong then is written after."""
        if report.when == "call" or report.outcome != "passed":
            passed = report.outcome == "passed" or hasattr(report, "wasxfail")
            self._write(report.nodeid, "passed" if passed else report.outcome)

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be loaded has no tests, and fails itself."""
        if report.outcome == "failed":
            self._write(report.nodeid, "failed")

    def _write(self, test: str, outcome: str) -> None:
        with self._place.open("a", encoding="utf-8") as file:
            file.write(json.dumps([test, outcome]) + "\n")


def pytest_addoption(parser: Any) -> None:
    parser.addoption(OPTION)


def pytest_configure(config: Any) -> None:
    place = config.getoption(OPTION)
    if place:
        config.pluginmanager.register(Writer(place))
