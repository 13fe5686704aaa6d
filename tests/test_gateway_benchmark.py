"""The benchmark of the gateway: it runs whole over a fake, and says of each goal what can be said."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parent.parent / "benchmarks" / "gateway.py"


@pytest.fixture(scope="module")
def gateway() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gateway_benchmark", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_goal_is_missed_only_beyond_the_noise_of_the_rounds(gateway: ModuleType) -> None:
    figures = {"ratio": 0.93, "first_added_ms": 14.0, "between_added_ms": 0.4, "noise": [0.01, 6.0, 0.1]}
    assert gateway.verdicts(figures) == {
        "ratio": "missed",
        "first_added_ms": "in the noise",
        "between_added_ms": "met",
    }
    assert gateway.noise([1.0, 3.0], [5.0, 7.0]) == pytest.approx(2 * ((2 + 2) / 2) ** 0.5)
    assert gateway.noise([1.0], [1.0]) == 0.0


def test_a_level_compares_the_means_of_its_rounds(gateway: ModuleType) -> None:
    direct = [gateway.Load(first=[0.1, 0.2, 0.3], between=[0.02], seconds=2.0, requests=4, tokens=40)] * 2
    captured = [gateway.Load(first=[0.2], between=[0.02003], seconds=2.0, requests=4, tokens=40)] * 2
    through = [gateway.Load(first=[0.205], between=[0.0201], seconds=2.5, requests=4, tokens=40)] * 2
    row = gateway.row(gateway.Level(4, 1, 10), direct, captured, through)
    assert (row["ratio"], row["first_added_ms"], row["between_added_ms"]) == (0.8, 5.0, 0.1)
    assert (row["between_added_by_capture_ms"], row["tokens"], row["late_ms"]) == (0.03, [80, 80, 80], None)


def test_a_token_of_a_fake_is_late_by_what_has_passed_since_its_step(gateway: ModuleType) -> None:
    loads = [gateway.Load(late=[0.001] * 19), gateway.Load(late=[0.003])]
    assert gateway.lateness(loads) == [1.0, pytest.approx(2.9, abs=0.1)]


def test_a_level_has_requests_and_tokens_of_its_own(gateway: ModuleType) -> None:
    found = gateway.levels_of("1,16,64", "8,2", "32,32,12")
    assert found == [gateway.Level(1, 8, 32), gateway.Level(16, 2, 32), gateway.Level(64, 2, 12)]


@pytest.mark.slow
def test_one_command_measures_every_level() -> None:
    command = [sys.executable, str(FILE), "--fake", "--rate", "200", "--streams", "1,4", "--requests", "2,1"]
    done = subprocess.run(
        [*command, "--tokens", "8", "--rounds", "2", "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    rows = json.loads(done.stdout)["fake"]
    assert [(row["streams"], row["tokens"]) for row in rows] == [(1, [32, 32, 32]), (4, [64, 64, 64])]
    assert done.returncode == any("missed" in row["goals"].values() for row in rows)
    assert all(row["gateway_cpu_ms_per_token"] > 0 for row in rows)
    assert all(0 < alone[0] < 5 for row in rows for alone in row["late_ms"]), "a step has 5 ms"
