"""Judge models in processes of their own: real classifiers and engines, small and made here."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio.to_thread
import pytest
from test_local_models import make_folder
from tiny import save_classifier
from workers import forked_workers, heavy_forkserver  # noqa: F401 (fixtures)

from openclaw_rl.app.application import App
from openclaw_rl.app.judges import build_model_judge, running
from openclaw_rl.backends.local.classifier.client import LocalClassifier
from openclaw_rl.backends.local.classifier.messages import ClassifierArgs
from openclaw_rl.backends.local.classifier.model import ClassifierModel
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.config import Config, load
from openclaw_rl.errors import BackendDown, ModelRefused
from openclaw_rl.judge.hosted import HostedJudge
from openclaw_rl.judge.one_pass import OnePass
from openclaw_rl.judge.parts import at_work
from openclaw_rl.judge.raters import PolicyRater
from openclaw_rl.ports import Judge
from openclaw_rl.testing import make_case
from openclaw_rl.types import Verdict

pytestmark = pytest.mark.slow

GOOD, BAD = 1, 0
SAID = [
    ("thank you, that is perfect", GOOD),
    ("great work, thanks", GOOD),
    ("perfect", GOOD),
    ("this is great", GOOD),
    ("lovely, just what I needed", GOOD),
    ("thanks, it works now", GOOD),
    ("good, that works", GOOD),
    ("exactly what I wanted, thank you", GOOD),
    ("no, that is wrong", BAD),
    ("this is wrong again", BAD),
    ("wrong, do it again", BAD),
    ("that does not work", BAD),
    ("bad, it is useless", BAD),
    ("useless answer, no", BAD),
    ("not what I asked for", BAD),
    ("terrible, it failed again", BAD),
]
UNSEEN = [
    ("Thanks, this works.", GOOD),
    ("just perfect, lovely work", GOOD),
    ("great, thank you, exactly that", GOOD),
    ("No, wrong answer.", BAD),
    ("useless, it failed", BAD),
    ("That is bad, do not do that again", BAD),
]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A classifier that has read what was said above."""
    return save_classifier(tmp_path_factory.mktemp("fitted") / "prm", SAID, steps=40)


def classifier(folder: str, tmp_path: Path, **change: Any) -> LocalClassifier:
    how: dict[str, Any] = {"reads": "message", "positive": (), "neutral": (), "hypothesis": "It went well."}
    args = {"model": folder, "cache_dir": tmp_path, "device": "cpu", "dtype": "auto", **how, **change}
    return LocalClassifier(ClassifierArgs(**args), progress=lambda text: None)


async def chance(model: LocalClassifier, after: str) -> float:
    return (await model.classify(request="write a note", reply="Here it is.", after=after)).positive


@pytest.mark.anyio
async def test_a_classifier_that_was_fitted_tells_good_from_bad(fitted: str, tmp_path: Path) -> None:
    model = classifier(fitted, tmp_path)
    await model.start()
    assert model.health["state"] == "ready"
    assert model.health["memory"] > 10_000
    assert [round(await chance(model, text), 1) for text, _ in UNSEEN] == [float(kind) for _, kind in UNSEEN]
    await model.stop()
    assert model.health["state"] == "stopped"


@pytest.mark.anyio
async def test_a_process_that_dies_costs_one_question_and_the_next_starts_another(fitted: str, tmp_path: Path) -> None:
    model = classifier(fitted, tmp_path)
    await model.start()
    before = await chance(model, "thanks, perfect")
    os.kill(model.health["pid"], signal.SIGKILL)
    with pytest.raises(BackendDown, match=r"died \(exit code -9\)"):
        await ask_until_it_fails(model)
    assert await chance(model, "thanks, perfect") == before
    await model.stop()


async def ask_until_it_fails(model: LocalClassifier) -> None:
    while True:
        await chance(model, "thanks, perfect")


@pytest.mark.anyio
async def test_a_long_exchange_is_cut_to_what_the_model_takes(fitted: str, tmp_path: Path) -> None:
    model = classifier(fitted, tmp_path, reads="exchange")
    found = await model.classify(request="why " * 500, reply="so " * 900, after="no " * 700)
    assert 0.0 <= found.positive <= 1.0
    await model.stop()


@pytest.mark.anyio
async def test_a_model_of_inference_reads_the_hypothesis_beside_the_exchange(tmp_path: Path) -> None:
    folder = save_classifier(
        tmp_path / "nli", [("thanks a lot", 0)], labels=("entailment", "neutral", "contradiction"), steps=3
    )
    answers = []
    for hypothesis in ("thanks a lot", "nothing that it knows"):
        model = classifier(folder, tmp_path, hypothesis=hypothesis)
        answers.append(await model.classify(request="", reply="", after="lot"))
        await model.stop()
    assert answers[0] != answers[1]
    assert all(0 < answer.neutral < 1 for answer in answers)


@pytest.mark.anyio
async def test_what_cannot_be_used_is_refused_with_the_remedy(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "dumb", [("a b", 0)], labels=("LABEL_0", "LABEL_1"))
    with pytest.raises(ModelRefused, match=r"set judge.classifier.positive to that label"):
        await classifier(folder, tmp_path).start()
    model = classifier(folder, tmp_path, positive=("LABEL_0",))
    await model.start()
    await model.stop()
    with pytest.raises(ModelRefused, match="no model at"):
        await classifier(str(tmp_path / "nowhere"), tmp_path).start()


# --- from settings


def config_of(tmp_path: Path, *sets: str) -> Config:
    fakes = ["policy.backend=fake", "train.backend=fake", "judge.models.device=cpu", "serve.port=0"]
    return load(environ={}, sets=[f"run.dir={tmp_path / 'run'}", *fakes, *sets]).config


async def verdicts(judge: Judge | None, *said: str) -> list[Verdict]:
    assert judge is not None
    async with running(judge, wait=True):
        return [await judge.judge(make_case(text)) for text in said]


@pytest.mark.anyio
async def test_a_classifier_named_as_scorer_gives_the_scores(fitted: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, f"judge.models.score={fitted}", "judge.classifier.reads=message")
    good, bad = await verdicts(build_model_judge(config), "Perfect, thank you.", "Wrong, no bullet lists!")
    assert good.score is not None
    assert bad.score is not None
    assert good.score > 0.5
    assert bad.score < -0.5
    assert good.judge == "classifier:prm"


@pytest.mark.anyio
async def test_a_classifier_cannot_give_hints_and_says_so(fitted: str, tmp_path: Path) -> None:
    judge = build_model_judge(config_of(tmp_path, f"judge.models.hints={fitted}", "judge.models.score=http://h/v1"))
    assert judge is not None
    async with running(judge, wait=True):
        [trouble] = [alarm for part in getattr(judge, "parts", ()) for alarm in getattr(part, "alarms", tuple)()]
    assert "writes none, so it gives no hints; name it as judge.models.score" in f"{trouble.what}; {trouble.remedy}"


@pytest.mark.anyio
async def test_a_chat_model_is_hosted_by_an_engine_of_its_own_and_votes(tmp_path: Path) -> None:
    """A random model answers nonsense: no vote can be read, and the case waits; the plumbing is what is seen here."""
    folder = make_folder(tmp_path / "tiny")
    (tmp_path / "turn.md").write_text("Judge.\n---\n{{request}}\n{{reply}}\n{{next_state}}")
    short = [f"judge.llm.prompts_dir={tmp_path}", "judge.llm.votes=2", "judge.llm.max_tokens=16"]
    config = config_of(tmp_path, f"judge.models.score={folder}", *short)
    judge = build_model_judge(config)
    assert isinstance(judge, HostedJudge)
    async with running(judge, wait=True):
        assert at_work(judge).startswith("2 votes of tiny@0, until tiny@0 in one pass is measured")
        report = judge.report()
        assert (report["state"], report["device"]) == ("ready", "cpu")
        assert report["memory"] > 2**20
        told = await judge.explain(make_case("thanks"))
        assert told.prompt is not None
        assert "no vote could be had: the answer is not one JSON object" in told.note
        [measured] = judge.parts
        inner, _ = measured.parts  # type: ignore[attr-defined]
        assert inner.voter.context == 1024  # type: ignore[attr-defined]
        assert await anyio.to_thread.run_sync(inner.voter.count, "twelve bytes") == 12  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_the_embedded_model_rates_words_in_one_scoring_call(tmp_path: Path) -> None:
    """Real weights: it cannot judge, but its log-probs are those of three different tokens after the same prompt."""
    from defaults import engine_args

    policy = LocalPolicy(engine_args(context=4096), progress=lambda text: None)
    await policy.start()
    try:
        asks = OnePass(PolicyRater(policy))
        odds = await asks.odds(make_case("That is wrong."), "chat")
        again = await asks.odds(make_case("That is wrong."), "chat")
    finally:
        await policy.stop()
    assert odds.bad + odds.neutral + odds.good == pytest.approx(1)
    assert min(odds.bad, odds.neutral, odds.good) > 1e-4, "the examples make each of the three words likely"
    assert (again.bad, again.good) == pytest.approx((odds.bad, odds.good), abs=0.02), "with the prefix in the cache too"


@pytest.mark.anyio
async def test_serving_goes_on_while_a_judge_cannot_start_and_status_says_why(tmp_path: Path) -> None:
    app = App(config_of(tmp_path, f"judge.models.score={tmp_path / 'nowhere'}"))
    assert app.judging == f"{tmp_path / 'nowhere'}, which is being loaded"
    async with app.started():
        assert app.ready.is_set()
        await app.tick()
        status = await app.loops["judge"].status()  # type: ignore[attr-defined]
    assert status["at_work"] == f"{tmp_path / 'nowhere'}, which cannot be started"
    [alarm] = status["alarms"]
    assert alarm["what"].startswith("the judge model ")
    assert "give 'embedded', a Hugging Face id" in alarm["remedy"]
    assert status["models"][0]["state"] == "failed"


class LettersAsTokens:
    """A tokenizer whose tokens are characters."""

    def encode(self, text: str, **_: object) -> list[int]:
        return [ord(sign) for sign in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


@pytest.mark.parametrize("room", [16, 40, 100])
def test_a_long_request_and_reply_never_push_out_the_following_message(room: int) -> None:
    model = object.__new__(ClassifierModel)
    model._tokenizer = LettersAsTokens()
    model._args = SimpleNamespace(reads="exchange")
    request = SimpleNamespace(request="q" * 500, reply="r" * 500, after="a" * 500)
    text = model._text(request, room)
    assert len(text) <= room + len("User: \nAssistant: \nUser: ")
    assert text.endswith("a")
