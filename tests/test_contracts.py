"""A loss and a judge by the contracts that the field's files keep, beside ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from judges import LIMITS
from promises import broken

from openclaw_rl.app.application import App
from openclaw_rl.app.factories import build_sample_settings, loss_config
from openclaw_rl.app.judges import build_judge, reward_model_config
from openclaw_rl.config import load
from openclaw_rl.errors import OpenClawError, PluginError
from openclaw_rl.judge import as_judge
from openclaw_rl.testing import check_judge, make_case, make_message, ticking_app

FAKES = ("policy.backend=fake", "policy.model=fake", "train.backend=fake", "serve.port=0")

CLIPPED = """
import torch

def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    ratio = torch.exp(policy_logits - reference_logits)
    clipped = torch.clamp(ratio, 1 - config["clip_range"], 1 + config["clip_range"])
    gain = torch.min(ratio * advantages, clipped * advantages).mean()
    kl = (torch.exp(reference_logits - policy_logits) - 1 - (reference_logits - policy_logits)).mean()
    return -gain + config["kl_coeff"] * kl + config.get("offset", 0.0)
"""

REINFORCE = """
SEEN = []

def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    SEEN.append((policy_logits.shape, rewards.tolist(), advantages.tolist(), config["sample"].tolist(), config["beta"]))
    return -(policy_logits * advantages).mean() * config["beta"]
"""

OURS = """
def loss(inputs, config):
    return -inputs.current.mean() * config["beta"], {"beta": config["beta"]}
"""

MODEL = """
class Model:
    def __init__(self, config):
        self.path, self.seen = config["prm_model_path"], []

    def score(self, prompt, response, next_state):
        self.seen.append((prompt, response, next_state))
        return 0.9 if "thanks" in next_state.lower() else 0.4

def get_reward_model(config):
    return Model(config)
"""


def write(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def settings(tmp_path: Path, *sets: str, **environ: str) -> Any:
    return load(environ=environ, sets=[f"run.dir={tmp_path / 'run'}", *FAKES, *sets]).config


# --- the loss


def test_a_loss_reads_the_settings_under_its_own_names_and_a_table_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        "[train.loss]\neps_low = 0.1\nkl_coef = 0.3\n[train.loss.config]\nbeta = 2.0\nclip_range_high = 9.0\n"
    )
    found = loss_config(load(file=file, environ={}).config)
    assert (found["clip_range"], found["clip_range_high"], found["kl_coeff"]) == (0.1, 9.0, 0.3)
    assert (found["beta"], found["eps_high"], found["kl"]) == (2.0, 0.28, "full")
    assert "custom" not in found


@pytest.mark.slow
def test_by_the_published_contract_scores_train_and_hints_do_not(tmp_path: Path) -> None:
    theirs = settings(tmp_path, f"train.loss.custom={write(tmp_path, 'theirs.py', CLIPPED)}", "train.method=opd")
    ours = settings(tmp_path, f"train.loss.custom={write(tmp_path, 'ours.py', OURS)}", "train.method=opd")
    assert [build_sample_settings(each).policy_gradient for each in (theirs, ours)] == [True, True]
    assert [build_sample_settings(each).distillation for each in (theirs, ours)] == [False, True]


WRONG = {
    "it returned a tensor of shape [1, 5], not a scalar; return its mean": "return -policy_logits * advantages",
    "it returned float, not a tensor": "return policy_logits.mean().item()",
    "without a gradient": "return policy_logits.detach().mean()",
    "KeyError: 'beta'; set train.loss.config.beta": "return policy_logits.mean() * config['beta']",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", WRONG)
def test_a_loss_that_gives_no_scalar_is_refused_before_anything_starts(tmp_path: Path, words: str) -> None:
    head = "def compute_loss(policy_logits, reference_logits, rewards, advantages, config):\n    "
    file = write(tmp_path, "mine.py", head + WRONG[words])
    with pytest.raises(OpenClawError) as caught:
        App(settings(tmp_path, f"train.loss.custom={file}"))
    assert words in str(caught.value)
    assert f"loss '{file}'" in str(caught.value)
    assert not (tmp_path / "run").exists()


@dataclass
class Loaded:
    model: Any
    tokenizer: Any


def load_tiny(model: str, **_: object) -> Loaded:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return Loaded(AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model))


PROMPT = (1, 4, 8, 9, 2, 1, 5)
REPLIES = {(20, 21, 2): (1.0, 1.0), (22, 2): (-1.0, -0.5), (30, 2): (None, None)}
"""a reply, its score and its advantage"""


def stepped(folder: str, target: Path, **change: Any) -> Any:
    """One step of a full tune on three replies: five tokens with a score and two without."""
    from defaults import trainer_args

    from openclaw_rl.backends.local.training.settings import StepRequest
    from openclaw_rl.backends.local.training.worker import TrainWorker
    from openclaw_rl.types import Message, Prompt, Sample, Version

    ask = Prompt(messages=(Message(role="user", content="w1 w2"),))
    samples = tuple(
        Sample(
            turn=str(reply),
            user="u",
            prompt=ask,
            prompt_tokens=PROMPT,
            reply_tokens=reply,
            logprobs=(-4.0,) * len(reply),
            mask=(True,) * len(reply),
            score=score,
            advantage=advantage,
            teachers=() if score else (ask.hinted("w9 w9 w8"),),
            temperature=1.0,
            version=9,
        )
        for reply, (score, advantage) in REPLIES.items()
    )
    given = {"model": folder, "cache_dir": folder, "loader": load_tiny, "lora": False, "lr": 1e-3, "threads": 1}
    calm = {"gap_alarm": 99.0, "ess_alarm": 0.0, "grad_clip": 0.0}
    trainer = TrainWorker(trainer_args(**{**given, **calm, **change}))
    parent = Version(number=0, parent=None, base="tiny")
    return trainer.step(StepRequest(samples=samples, number=1, parent=parent, target=str(target)))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_step_with_a_published_loss_is_the_step_of_its_formula(tmp_path: Path) -> None:
    import torch
    from tiny import save_tiny

    from openclaw_rl import plugins

    folder, file = save_tiny(tmp_path / "tiny"), write(tmp_path, "mine.py", REINFORCE)
    done = stepped(folder, tmp_path / "v1", loss=file, loss_config={"beta": 0.5}, kl_coef=0.0)
    [(shape, rewards, advantages, sample, beta)] = plugins.load("loss", f"{file}:SEEN")
    assert (tuple(shape), rewards, sample, beta) == ((1, 5), [[1, 1, 1, -1, -1]], [[0, 0, 0, 1, 1]], 0.5)
    assert advantages == [[1, 1, 1, -0.5, -0.5]]

    model = load_tiny(folder).model
    logprobs = []
    for reply in list(REPLIES)[:2]:
        ids = torch.tensor([[*PROMPT, *reply]])
        found = model(input_ids=ids).logits.log_softmax(-1)[0, len(PROMPT) - 1 : -1]
        logprobs.append(found.gather(-1, torch.tensor(reply)[:, None])[:, 0])
    by_hand = -0.5 * (logprobs[0].sum() * 1.0 + logprobs[1].sum() * -0.5) / 5
    by_hand.backward()
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None))
    assert done.metrics["loss"] == pytest.approx(float(by_hand.detach()), rel=1e-4)
    assert done.metrics["grad_norm"] == pytest.approx(norm, rel=1e-3)
    assert done.metrics["tokens_rl"] == 5.0
    assert (tmp_path / "v1" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_clipped_loss_against_the_reference_begins_at_minus_the_mean_advantage(tmp_path: Path) -> None:
    from tiny import save_tiny

    folder, file = save_tiny(tmp_path / "tiny"), write(tmp_path, "mine.py", CLIPPED)
    config = {"clip_range": 0.2, "kl_coeff": 0.1, "offset": 0.25}
    done = stepped(folder, tmp_path / "v1", loss=file, loss_config=config, kl_coef=0.0)
    # the policy is the reference yet: every ratio is 1, there is no divergence, and (3 x 1 - 2 x 1/2) / 5 = 0.4
    assert done.metrics["loss"] == pytest.approx(-0.4 + 0.25, abs=1e-5)
    assert done.metrics["grad_norm"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_loss_of_ours_may_ask_for_its_config(tmp_path: Path) -> None:
    from tiny import save_tiny

    folder, file = save_tiny(tmp_path / "tiny"), write(tmp_path, "mine.py", OURS)
    done = stepped(folder, tmp_path / "v1", loss=file, loss_config={"beta": 3.0})
    assert done.metrics["beta"] == 3.0


# --- the judge


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("probability", "score", "vote"), [(1.0, 1.0, 1), (0.8, 0.6, 1), (0.7, 0.4, 0), (0.5, 0.0, 0), (0.2, -0.6, -1)]
)
async def test_a_probability_is_a_score_and_one_vote(probability: float, score: float, vote: int) -> None:
    class Model:
        def score(self, prompt: str, response: str, next_state: str) -> float:
            return probability

    verdict = await as_judge(Model(), limits=LIMITS, name="mine").judge(make_case("hm"))
    assert verdict.score == pytest.approx(score)
    assert (verdict.votes, verdict.judge) == ((vote,), "mine")


@pytest.mark.anyio
async def test_a_number_that_is_no_probability_is_an_abstention() -> None:
    class Model:
        async def score(self, prompt: str, response: str, next_state: str) -> float:
            return 1.7

    verdict = await as_judge(Model(), limits=LIMITS, name="mine").judge(make_case("hm"))
    assert (verdict.score, verdict.votes) == (None, ())
    assert verdict.note == "mine gave 1.7, which is no probability in 0 .. 1"


@pytest.mark.anyio
async def test_a_reward_model_gets_its_path_and_plain_text(tmp_path: Path) -> None:
    file = write(tmp_path, "custom_rm.py", MODEL)
    config = settings(tmp_path, f"judge.custom={file}", "judge.options.margin=2", PRM_MODEL_PATH="/models/prm")
    assert reward_model_config(config)["prm_model_path"] == "/models/prm"
    assert reward_model_config(config)["margin"] == 2
    judge: Any = build_judge(config, None)
    case = make_case(make_message("user", "Great, thanks!"), reply="Tea is a plant.")
    assert (await judge.judge(case)).score == pytest.approx(0.8)
    model = judge._score.__self__
    assert (model.path, model.seen) == ("/models/prm", [("list files", "Tea is a plant.", "Great, thanks!")])


def test_several_messages_are_told_apart_by_their_roles(tmp_path: Path) -> None:
    from openclaw_rl.judge.custom import as_text

    assert as_text([make_message("user", "Hi"), make_message("tool", "42", tool_call_id="c")]) == "user: Hi\n\ntool: 42"
    assert (as_text([]), as_text([make_message("user", "Hi")])) == ("", "Hi")


def test_a_reward_model_keeps_the_promises_of_a_judge(tmp_path: Path) -> None:
    from openclaw_rl import plugins

    factory = plugins.load("judge", write(tmp_path, "custom_rm.py", MODEL) + ":get_reward_model")
    model = factory({"prm_model_path": None})
    assert broken(check_judge, model) == []
    assert len(model.seen) >= 1, "it was asked"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 7", "a reward model of the wrong shape: it has no 'score'; see openclaw_rl.ports.RewardModel"),
        ("return open(config['prm_model_path'])", "gives no reward model: TypeError: .*; set PRM_MODEL_PATH"),
    ],
)
def test_a_reward_model_that_cannot_score_is_refused_at_the_start(tmp_path: Path, body: str, words: str) -> None:
    file = write(tmp_path, "custom_rm.py", f"def get_reward_model(config):\n    {body}\n")
    with pytest.raises(PluginError, match=words):
        App(settings(tmp_path, f"judge.custom={file}"))


@pytest.mark.anyio
async def test_a_bare_reward_model_file_judges_a_whole_run(tmp_path: Path) -> None:
    file = write(tmp_path, "custom_rm.py", MODEL)
    async with ticking_app(tmp_path / "run", f"judge.custom={file}", "train.batch_size=1") as run:
        first = await run.ask("Tell me about tea")
        reply = first["choices"][0]["message"]["content"]
        await run.ask("Tell me about tea", reply, "And what about rain?")
        await run.app.finish()
        found = run.show(first["id"])
    assert found["verdict"]["score"] == pytest.approx(-0.2)
    assert found["verdict"]["votes"] == [0]
    assert found["verdict"]["judge"] == file


# --- the teacher


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_teacher_with_another_vocabulary_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    from tiny import save_tiny

    from openclaw_rl.errors import ModelRefused

    folder, other = save_tiny(tmp_path / "tiny"), save_tiny(tmp_path / "other")
    done = stepped(folder, tmp_path / "v1", teacher_model=other)
    assert done.adapter is not None
    words = tmp_path / "other" / "tokenizer.json"
    words.write_text(words.read_text().replace('"w3": 10', '"w30": 10', 1).replace('"w30": 37', '"w3": 37', 1))
    with pytest.raises(ModelRefused) as caught:
        stepped(folder, tmp_path / "v2", teacher_model=other)
    assert str(caught.value) == (
        f"the teacher {other} has another vocabulary than {folder}: 2 tokens differ; 'w3' is 10 for the policy and is 37 "
        "for the teacher; give train.loss.teacher_model a model with the policy's tokenizer, or unset it"
    )
