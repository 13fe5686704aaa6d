"""The simulator of benchmarks/scale.py: its queues by hand, and that it finds what is too small."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parent.parent / "benchmarks" / "scale.py"
spec = importlib.util.spec_from_file_location("scale_benchmark", FILE)
assert spec is not None
assert spec.loader is not None
scale: Any = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = scale
spec.loader.exec_module(scale)


def test_two_servers_take_three_turns_in_two_rounds() -> None:
    part = scale.Part(2)
    assert [part.serve(0.0, 1.0) for _ in range(3)] == [1.0, 1.0, 2.0]
    assert part.waits == [0.0, 0.0, 1.0]
    assert part.serve(5.0, 1.0) == 6.0
    assert part.at_work(5.5) == 1


def test_a_sequence_is_as_fast_as_its_neighbours_leave_it() -> None:
    assert scale.decode_rate(1) == 158.0
    assert scale.decode_rate(10) == pytest.approx((428 + (1354 - 428) * 6 / 12) / 10)
    assert scale.decode_rate(64) == pytest.approx(3368 / 64)


@pytest.mark.parametrize(("figure", "value", "part"), [("ledger", 0.5, "ledger"), ("judge", 60.0, "judge")])
def test_what_was_made_slow_is_the_bottleneck(figure: str, value: float, part: str) -> None:
    figures = replace(scale.Figures(), active=1.0, **{figure: value})
    there = scale.Deployment(engines=1, trainers=1, gateways=2, judges=2, gpus=2)

    def found(figures: Any) -> Any:
        return scale.knee(lambda users: scale.replay(users, there, figures, seconds=200, seed=0), 2.0)

    slow, usual = found(figures), found(replace(scale.Figures(), active=1.0))
    assert slow.bottleneck == part
    assert slow.users < usual.users / 2
