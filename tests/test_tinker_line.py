"""The whole line at a server of Tinker's protocol: a request, a correction, a step there, the new version answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.tinker import KEY, TinkerServer, tinker_server
from tinkering import LEAKS, sdk_leaves_sockets_open, thorough, tiny_folder  # noqa: F401

from openclaw_rl.app.doctor import Diagnosis, examine
from openclaw_rl.config import load
from openclaw_rl.testing import ticking_app

pytestmark = [*LEAKS, pytest.mark.anyio, pytest.mark.slow]
WISH = "Too long. Please keep it under 30 words."
FREE = ("gate.mode=off", "notes.enabled=off", "train.prompt_distillation.enabled=off", "policy.sampling.max_tokens=12")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    with tinker_server(tiny_folder(tmp_path_factory.mktemp("tiny"))) as running:
        yield running


def at(server: TinkerServer, *more: str) -> list[str]:
    there = [f"cloud.tinker_endpoint={server.url}", f"cloud.tinker_api_key={KEY}", f"policy.model={server.model}"]
    return [*there, "policy.backend=tinker", "train.backend=tinker", "train.optim.lr=0.01", *more]


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


PRICES = tuple(
    f"cloud.price_per_million.{kind}={price}" for kind, price in (("prefill", 1), ("sample", 2), ("train", 4))
)


async def test_a_correction_is_learned_there_and_the_new_version_answers(
    server: TinkerServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = at(server, "train.batch_size=1", "train.idle_wait=3600", "train.train_truncated=on", *FREE, *PRICES)
    async with ticking_app(tmp_path / "run", *settings) as walk:
        first = await walk.ask("w1 w2 w3")
        await walk.ask("w1 w2 w3", text(first), WISH)
        await walk.app.finish()
        learned = await walk.ask("w1 w2 w3", seed=1)
        assert learned["system_fingerprint"] == "openclaw-rl-v1"
        old = await walk.ask("w1 w2 w3", seed=1, model=f"{Path(server.model).name}@0")
        assert old["system_fingerprint"] == "openclaw-rl-v0"
        shown = walk.show(first["id"])
        assert (shown["step"], shown["verdict"]["score"]) == (1, -1.0)
        turns = walk.ledger.counts()["turns"]
        spent = walk.ledger.last_step().metrics
        prefill, sample, train = (spent[f"cloud_{kind}"] for kind in ("prefill", "sample", "train"))
        assert min(prefill, sample, train) > 0
        assert spent["cloud_cost"] == pytest.approx((prefill + 2 * sample + 4 * train) / 1e6)
        assert f"{prefill + sample + train:.0f} tokens of the service (about " in caplog.text
        pages = [(await walk.client.get(path)).text for path in ("/healthz", "/metrics", "/v1/models")]
    async with ticking_app(tmp_path / "run", *settings) as walk:  # a new process: all it has is the run directory
        again = await walk.ask("w1 w2 w3", seed=1)
        assert again["system_fingerprint"] == "openclaw-rl-v1"
        assert text(again) == text(learned)
        assert walk.ledger.counts()["turns"] == turns + 1
    kept = [file.read_text(errors="ignore") for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert not [text for text in (*kept, *pages, caplog.text) if KEY in text]


async def test_a_spent_budget_refuses_requests_by_the_settings_name(server: TinkerServer, tmp_path: Path) -> None:
    settings = at(server, "cloud.daily_budget=1e-5", *FREE, *PRICES)
    async with ticking_app(tmp_path / "run", *settings) as walk:
        await walk.ask("w1 w2 w3")
        body = {"model": "any", "messages": [{"role": "user", "content": "w1"}]}
        refused = await walk.client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 503
        assert "cloud.daily_budget = 1e-05 is spent" in refused.json()["error"]["message"]
        assert KEY not in refused.text


@thorough
async def test_the_gate_examines_a_candidate_there(server: TinkerServer, tmp_path: Path) -> None:
    settings = at(server, "train.batch_size=1", "train.train_truncated=on", "policy.sampling.max_tokens=12")
    quick = (
        "train.prompt_distillation.idle=0",
        "train.prompt_distillation.steps=1",
        "train.prompt_distillation.batch=2",
        "train.prompt_distillation.held_back=2",
    )
    async with ticking_app(tmp_path / "run", *settings, *quick, "train.prompt_distillation.tokens=8") as walk:
        first = await walk.ask("w1 w2 w3")
        await walk.ask("w1 w2 w3", text(first), WISH)
        await walk.app.finish()
        decided = walk.ledger.gate_decisions(1)
        assert decided, "the gate has looked at the candidate"
        assert {each.decision for each in decided} <= {"promote", "refuse"}


def engines_line(server: TinkerServer, root: Path, *more: str) -> Diagnosis:
    config = load(environ={}, sets=[f"run.dir={root / 'run'}", *at(server, *more)]).config
    return next(each for each in examine(config) if each.check == "engines")


def test_doctor_says_what_the_service_is_and_what_is_wrong_with_it(server: TinkerServer, tmp_path: Path) -> None:
    before = server.calls.count("asample")
    fine = engines_line(server, tmp_path)
    assert fine.state == "ok", fine
    assert f"reaches {server.url}: 1 models" in fine.detail
    other = engines_line(server, tmp_path, "policy.model=Qwen/Qwen3-8B")
    assert (other.detail, other.state) == ("it has no model 'Qwen/Qwen3-8B'", "trouble")
    away = engines_line(server, tmp_path, "cloud.tinker_endpoint=http://127.0.0.1:9")
    assert away.remedy == "see TINKER_BASE_URL"
    wrong = engines_line(server, tmp_path, "cloud.tinker_api_key=tml-wrong")
    assert (wrong.remedy, "tml-wrong" in str(wrong)) == ("correct TINKER_API_KEY", False)
    free = engines_line(server, tmp_path, "cloud.daily_budget=5")
    assert free.detail == "cloud.daily_budget is set, but cloud.price_per_million names no price"
    assert server.calls.count("asample") == before, "nothing is sampled for it"
