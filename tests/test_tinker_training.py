"""Training at a server of Tinker's protocol: each method against the local trainer, faults at each call, resuming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.tinker import TinkerServer, tinker_server
from fakes.tinker.lora import LoraModel, LoraShape
from test_local_trainer import ASK, HINT, lesson, worker
from tinkering import (
    BASE,
    LEAKS,
    first,
    policy_at,
    sdk_leaves_sockets_open,  # noqa: F401
    thorough,
    tiny_folder,
    trainer_at,
)

from openclaw_rl.backends.hf.batches import collate
from openclaw_rl.backends.hf.detokenizer import WIDE
from openclaw_rl.backends.tinker.remote import RemoteWeights, read_remote
from openclaw_rl.backends.tinker.trainer import TinkerTrainer
from openclaw_rl.errors import BackendError, BackendGone, ConfigError, ModelRefused, RequestError
from openclaw_rl.losses import with_tail
from openclaw_rl.ports import StepResult, whole_reply
from openclaw_rl.testing import check_trainer
from openclaw_rl.types import Sample, Sampling, Version

pytestmark = [*LEAKS, pytest.mark.anyio, pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
WHERE = "tinker://x/sampler_weights/y"
HINTS = (HINT, ASK.hinted("w11 w12 w13 w14"))
Weights = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[TinkerServer]:
    with tinker_server(folder) as running:
        yield running


@pytest.fixture
async def trainer(server: TinkerServer, tmp_path: Path) -> AsyncIterator[TinkerTrainer]:
    made = trainer_at(server, tmp_path)
    yield made
    await made.stop()
    server.heal()


def version(number: int, adapter: str | None) -> Version:
    return Version(number=number, parent=number - 1, base="tiny", adapter=adapter)


async def step(
    trainer: TinkerTrainer, root: Path, number: int = 1, samples: Any = None, parent: Any = BASE
) -> StepResult:
    given = lesson(teachers=HINTS) if samples is None else samples
    return await trainer.step(given, number=number, parent=parent, target=str(root / f"{number:06d}"))


def saved(server: TinkerServer, adapter: str | None) -> Weights:
    assert adapter is not None
    return server.checkpoints[read_remote(Path(adapter)).state].weights


def same(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- every method, against the local trainer


def some_adapter(like: Weights) -> Weights:
    """An adapter that has learned something: at its beginning half of the gradient is zero."""
    rng = torch.Generator().manual_seed(5)
    return {name: 0.1 * torch.randn(value.shape, generator=rng) for name, value in like.items()}


def local_gradient(folder: Path, samples: list[Sample], **settings: Any) -> tuple[dict[str, float], Weights]:
    here = worker(str(folder), **{"kl": "k3", **settings})
    here.policy.put(some_adapter(here.policy.parameters))
    kept, views = here.teacher_prompts(samples).kept()
    batch = collate(kept, views, version=0, device=torch.device("cpu"), wide=torch.float32)
    return here._gradient(batch), {name: p.grad for name, p in here.policy.parameters.items()}


async def cloud_gradient(
    server: TinkerServer, root: Path, samples: list[Sample], **settings: Any
) -> tuple[dict[str, float], Weights]:
    """What a step at the service found, from the same adapter."""
    trainer = trainer_at(server, root, **settings)

    async def at_that_adapter(_: Version) -> RemoteWeights:
        if trainer._student is None:
            trainer._student, trainer._at = await trainer._opened(None), ""
            there = server.models[trainer._student.model_id]
            for name, value in some_adapter(there.parameters).items():
                there.parameters[name].data.copy_(value)
            server.checkpoints[WHERE] = there.save(optimizer=False)
        return RemoteWeights(sampler=WHERE, state="")

    trainer._load = at_that_adapter  # type: ignore[method-assign]
    done = await step(trainer, root, samples=samples)
    assert done.skipped is None, done.skipped
    applied = server.models[trainer._student.model_id].applied
    await trainer.stop()
    return dict(done.metrics), applied


def alike(ours: Weights, theirs: Weights, within: float = 1e-4) -> None:
    assert ours.keys() == theirs.keys()
    worst = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    scale = max(float(value.abs().max()) for value in ours.values())
    assert scale > 1e-3, "there is a gradient to compare"
    assert worst < within * max(1.0, scale), (worst, scale)


METHODS: list[dict[str, Any]] = [
    {"method": "binary"},
    {"method": "opd"},
    {"method": "distill"},
    {"method": "combine"},
    *(
        {"method": "topk", "subset": subset, "hint_selection": selection}
        for subset in ("overlap", "student", "teacher")
        for selection in ("sequence_optimal", "token_optimal", "shortest")
    ),
    {"method": "topk", "w_rl": 0.0},
    {"method": "topk", "w_opd": 0.0},
    {"method": "binary", "kl_coef": 0.0},
    {"method": "binary", "aggregate": "sample"},
    {"method": "opd", "teacher": "live"},
]


@pytest.mark.parametrize("settings", first(METHODS, 5), ids=lambda one: "-".join(map(str, one.values())))
async def test_a_methods_loss_and_gradient_are_those_of_the_local_trainer(
    server: TinkerServer, folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    samples = lesson(teachers=HINTS)
    samples[1] = replace(samples[1], advantage=-0.5, mask=(True, False, True, True))
    found, ours = local_gradient(folder, samples, **settings)
    said, theirs = await cloud_gradient(server, tmp_path, samples, **settings)
    assert said["loss"] == pytest.approx(found["loss"], abs=1e-4)
    alike(ours, theirs)


def recorded(server: TinkerServer, gaps: tuple[float, float], **change: Any) -> list[Sample]:
    """Replies whose recorded log-probs are the adapter's own but for gaps, one after the other."""
    model, made = LoraModel(server.base, LoraShape(rank=16)), []
    for name, value in some_adapter(model.parameters).items():
        model.parameters[name].data.copy_(value)
    for one in lesson(teachers=()):
        whole, reply = [*one.prompt_tokens, *one.reply_tokens], one.reply_tokens
        found = model.score(whole)[-len(reply) - 1 : -1].gather(1, torch.tensor(reply)[:, None])[:, 0].tolist()
        logprobs = tuple(value - gaps[at % 2] for at, value in enumerate(found))
        made.append(replace(one, logprobs=logprobs, **change))
    return made


@pytest.mark.parametrize(
    ("version", "gaps", "aggregate", "passes"),
    first(
        [
            (0, (0.1, -0.1), "token", 1),
            (0, (0.4, 0.0), "token", 3),
            (9, (0.1, -0.1), "sample", 1),
            (9, (0.5, -0.5), "token", 1),
        ],
        2,
    ),
)
async def test_scores_alone_take_one_pass_by_the_services_own_loss_where_that_is_ours(
    server: TinkerServer, folder: Path, tmp_path: Path, version: int, gaps: Any, aggregate: str, passes: int
) -> None:
    settings = {"method": "binary", "kl_coef": 0.0, "aggregate": aggregate}
    samples = recorded(server, gaps, version=version)
    found, ours = local_gradient(folder, samples, **settings)
    before = len(server.calls)
    said, theirs = await cloud_gradient(server, tmp_path, samples, **settings)
    assert server.calls[before:].count("forward_backward") == passes, "one forward and back, or it and two more"
    assert said["loss"] == pytest.approx(found["loss"], abs=1e-4)
    alike(ours, theirs)


@thorough
async def test_a_server_that_takes_one_target_for_each_position_gives_the_same_gradient(
    folder: Path, tmp_path: Path
) -> None:
    with tinker_server(folder, wide_targets=False) as narrow:
        found, ours = local_gradient(folder, lesson(teachers=HINTS))
        said, theirs = await cloud_gradient(narrow, tmp_path, lesson(teachers=HINTS))
    assert said["loss"] == pytest.approx(found["loss"], abs=1e-4)
    alike(ours, theirs)


@thorough
async def test_after_a_long_prompt_only_what_is_not_zero_is_sent(
    server: TinkerServer, folder: Path, tmp_path: Path
) -> None:
    long = [replace(one, prompt_tokens=(1, 4, *[8, 9] * 40, 2, 1, 5)) for one in lesson(teachers=HINTS)]
    found, ours = local_gradient(folder, long)
    said, theirs = await cloud_gradient(server, tmp_path, long)
    assert said["loss"] == pytest.approx(found["loss"], abs=1e-4)
    alike(ours, theirs)


@thorough
async def test_a_custom_loss_is_a_function_of_the_same_inputs(
    server: TinkerServer, folder: Path, tmp_path: Path
) -> None:
    own = {"loss": "test_local_trainer:half_the_ratio"}
    found, ours = local_gradient(folder, lesson(teachers=HINTS), **own)
    said, theirs = await cloud_gradient(server, tmp_path, lesson(teachers=HINTS), **own)
    assert said["mine"] == found["mine"] == 1.0
    alike(ours, theirs)


def distilled(**change: Any) -> list[Sample]:
    return [replace(one, distills="note", teachers=(HINT,), advantage=None, **change) for one in lesson()]


@pytest.mark.parametrize("loss", first(["reverse", "forward"]))
async def test_a_distillation_follows_the_kl_over_the_likeliest_tokens_and_the_rest_as_one(
    server: TinkerServer, folder: Path, tmp_path: Path, loss: str
) -> None:
    there = LoraModel(server.base, LoraShape(rank=16))
    for name, value in some_adapter(there.parameters).items():
        there.parameters[name].data.copy_(value)
    values, hinted = [], (1, 4, 8, 9, 16, 16, 15, 2, 1, 5)
    assert worker(str(folder)).teacher_prompts(distilled()).views[0][0] == hinted
    for one in distilled():
        reply = len(one.reply_tokens)
        q = there._logprobs([*one.prompt_tokens, *one.reply_tokens])[-reply - 1 : -1]
        p = server.base(torch.tensor([[*hinted, *one.reply_tokens]])).logits[0, -reply - 1 : -1].log_softmax(-1)
        first, second = (p, q) if loss == "forward" else (q, p)
        ids = first.topk(WIDE).indices
        first, second = with_tail(first.gather(1, ids)), with_tail(second.gather(1, ids))
        values.append((first.exp() * (first - second)).sum(-1))
    wanted = torch.cat(values).mean()
    wanted.backward()
    said, theirs = await cloud_gradient(server, tmp_path, distilled(), distillation_loss=loss)
    assert said["loss_distillation"] == pytest.approx(float(wanted.detach()), abs=1e-4)
    alike(there.gradients, theirs)
    _, whole = local_gradient(folder, distilled(), distillation_loss=loss)
    flat = [torch.cat([w[name].flatten() for name in sorted(w)]) for w in (whole, theirs)]
    assert float(torch.nn.functional.cosine_similarity(*flat, dim=0)) > 0.9, "much of what the whole vocabulary says"


@thorough
async def test_replies_of_another_temperature_take_the_trainers_own_weights_for_the_behaviour_policy(
    server: TinkerServer, folder: Path, tmp_path: Path
) -> None:
    warm = [replace(one, temperature=0.7) for one in lesson(teachers=HINTS)]
    plain = [replace(one, logprobs=None) for one in lesson(teachers=HINTS)]
    found, ours = local_gradient(folder, plain)
    said, theirs = await cloud_gradient(server, tmp_path, warm)
    assert said["loss"] == pytest.approx(found["loss"], abs=1e-4)
    alike(ours, theirs)


async def test_what_the_policy_sampled_differs_from_the_trainer_by_rounding_alone(
    server: TinkerServer, trainer: TinkerTrainer, tmp_path: Path
) -> None:
    policy = policy_at(server, tmp_path)
    await policy.start()
    samples = []
    for at in range(2):
        done = await whole_reply(policy.generate(ASK, Sampling(max_tokens=8, seed=at)))
        said = {"reply_tokens": done.reply_tokens, "logprobs": done.logprobs, "mask": (True,) * len(done.reply_tokens)}
        samples.append(replace(lesson()[0], turn=f"t{at}", prompt_tokens=done.prompt_tokens, version=0, **said))
    await policy.stop()
    done = await step(trainer, tmp_path, samples=samples)
    assert done.metrics["gap_mean"] < 1e-5
    assert done.metrics["ess"] == pytest.approx(1.0, abs=1e-4)


# --- steps, versions, resuming


async def test_steps_reduce_the_loss_of_a_fixed_batch_and_say_what_they_cost(
    server: TinkerServer, trainer: TinkerTrainer, tmp_path: Path
) -> None:
    parent, seen = BASE, []
    for number in (1, 2, 3):
        before = list(server.calls)
        done = await step(trainer, tmp_path, number, parent=parent)
        seen.append(done.metrics["loss"])
        parent = version(number, done.adapter)
    assert seen[2] < seen[1] < seen[0]
    assert done.metrics["cloud_train"] > 0
    assert done.metrics["cloud_cost"] == pytest.approx(
        (done.metrics["cloud_prefill"] + 2 * done.metrics["cloud_sample"] + 4 * done.metrics["cloud_train"]) / 1e6
    )
    calls = server.calls[len(before) :]
    assert calls.count("create_model") == 0, "a client that stands where the parent left it is used again"
    assert calls.count("optim_step") == 1


async def test_a_trainer_that_was_killed_goes_on_bit_for_bit_from_the_newest_version(
    server: TinkerServer, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trainer = trainer_at(server, tmp_path, method="combine")
    parent = BASE
    for number in (1, 2, 3):
        parent = version(number, (await step(trainer, whole, number, parent=parent)).adapter)
    await trainer.stop()
    other = BASE
    for number in (1, 2, 3):
        again = trainer_at(
            server, tmp_path, method="combine"
        )  # nothing of the one before it but what is on disk and at the service
        if number == 3:
            server.forget_sessions()
        other = version(number, (await step(again, parts, number, parent=other)).adapter)
        await again.session.close()
    assert same(saved(server, parent.adapter), saved(server, other.adapter))


@thorough
async def test_a_step_that_was_published_but_never_reported_is_reported_and_not_done_twice(
    server: TinkerServer, trainer: TinkerTrainer, tmp_path: Path
) -> None:
    done = await step(trainer, tmp_path)
    steps = server.calls.count("optim_step")
    again = await step(trainer, tmp_path)
    assert (again.adapter, again.metrics) == (done.adapter, done.metrics)
    assert server.calls.count("optim_step") == steps
    assert (await step(trainer, tmp_path, samples=lesson()[:2])).metrics != done.metrics, (
        "another batch is another step"
    )


def test_it_keeps_the_promises_of_a_trainer(server: TinkerServer, tmp_path: Path) -> None:
    made = trainer_at(server, tmp_path, cloud_download=True)
    check_trainer(made, weights="adapter_model.safetensors")


async def test_a_downloaded_adapter_speaks_as_the_service_does(server: TinkerServer, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trainer = trainer_at(server, tmp_path, cloud_download=True, lr=5e-2)
    done = await step(trainer, tmp_path)
    await trainer.stop()
    here = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(server.model), done.adapter).eval()
    there = LoraModel(server.base, server.checkpoints[read_remote(Path(str(done.adapter))).sampler].shape)
    there.load(server.checkpoints[read_remote(Path(str(done.adapter))).sampler], optimizer=False)
    ids = [1, 4, 8, 9, 2, 1, 5]
    found = here(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert torch.allclose(found, there.score(ids), atol=1e-5)
    assert not torch.allclose(found, server.base(torch.tensor([ids])).logits[0].log_softmax(-1), atol=1e-2)


@thorough
async def test_the_policy_takes_up_a_version_without_a_pause_and_old_ones_still_answer(
    server: TinkerServer, tmp_path: Path
) -> None:
    trainer, policy = trainer_at(server, tmp_path, lr=5e-2), policy_at(server, tmp_path)
    await policy.start()
    done = await step(trainer, tmp_path)
    under_way = policy.generate(ASK, Sampling(max_tokens=4, seed=1))
    first = await whole_reply(under_way)
    await policy.load(version(1, done.adapter))
    second = await whole_reply(policy.generate(ASK, Sampling(max_tokens=4, seed=1)))
    old = await whole_reply(policy.generate(ASK, Sampling(max_tokens=4, seed=1), version=0))
    assert (first.version, second.version, old.version) == (0, 1, 0)
    assert old.reply_tokens == first.reply_tokens
    scores = await policy.score(first.prompt_tokens, first.reply_tokens)
    assert scores.logprobs != first.logprobs
    await policy.stop()
    await trainer.stop()


# --- alarms and faults


@thorough
async def test_an_alarm_skips_the_step_and_the_next_one_begins_where_this_one_did(
    server: TinkerServer, tmp_path: Path
) -> None:
    careful = trainer_at(server, tmp_path, gap_alarm=0.05)
    close = [replace(one, version=0) for one in lesson(teachers=HINTS)]
    done = await step(careful, tmp_path, samples=close)
    assert (done.adapter, "trainer and engine differ by" in str(done.skipped)) == (None, True)
    assert not (tmp_path / "000001").exists()
    fine = await step(careful, tmp_path / "a")
    await careful.stop()
    plain = trainer_at(server, tmp_path)
    assert same(saved(server, fine.adapter), saved(server, (await step(plain, tmp_path / "b")).adapter))
    quiet = await step(plain, tmp_path, samples=lesson(advantage=0.0, teachers=()))
    assert quiet.skipped == "no signal: every advantage is zero and there is no hint"
    await plain.stop()


CALLS = (
    "optim_step",
    "create_session",
    "create_model",
    "weights_info",
    "load_weights",
    "create_sampling_session",
    "asample",
    "forward_backward",
    "save_weights",
    "save_weights_for_sampler",
    "retrieve_future",
)


@pytest.fixture(autouse=True)
def healthy(server: TinkerServer) -> Iterator[None]:
    yield
    server.heal()


@pytest.fixture(scope="module")
def undisturbed(server: TinkerServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Weights]:
    """The first version, and the weights of the second that nothing came between."""
    root = tmp_path_factory.mktemp("undisturbed")

    async def two_steps() -> tuple[str, Weights]:
        trainer = trainer_at(server, root)
        first = await step(trainer, root)
        second = await step(trainer, root, 2, parent=version(1, first.adapter))
        await trainer.stop()
        return str(first.adapter), saved(server, second.adapter)

    return asyncio.run(two_steps())


async def test_what_passes_by_itself_costs_a_step_only_time_at_every_call(
    server: TinkerServer, tmp_path: Path, undisturbed: tuple[str, Weights]
) -> None:
    first, wanted = undisturbed
    for call in CALLS:
        server.fail(call, 503)
    trainer = trainer_at(server, tmp_path)
    done = await step(trainer, tmp_path, 2, parent=version(1, first))
    await trainer.stop()
    assert same(saved(server, done.adapter), wanted)


@pytest.mark.parametrize("call", first(CALLS))
async def test_a_lost_session_at_any_call_is_opened_again_and_the_step_gives_the_same_weights(
    server: TinkerServer, tmp_path: Path, undisturbed: tuple[str, Weights], call: str
) -> None:
    first, wanted = undisturbed
    server.fail(call, 410)
    trainer = trainer_at(server, tmp_path)
    done = await step(trainer, tmp_path, 2, parent=version(1, first))
    await trainer.stop()
    assert same(saved(server, done.adapter), wanted)


@pytest.mark.parametrize("call", first(["optim_step", "load_weights", "forward_backward", "save_weights_for_sampler"]))
@pytest.mark.parametrize("fault", first([402, "server: it fell over", "user: it is odd"], 2))
async def test_a_fault_that_ends_a_step_leaves_no_version_and_the_next_try_gives_the_same_weights(
    server: TinkerServer, tmp_path: Path, undisturbed: tuple[str, Weights], call: str, fault: int | str
) -> None:
    first, wanted = undisturbed
    server.fail(call, *([fault] * (3 if fault == 402 else 2)))
    trainer = trainer_at(server, tmp_path)
    with pytest.raises(BackendGone if fault == 402 else BackendError) as error:
        await step(trainer, tmp_path, 2, parent=version(1, first))
    assert not isinstance(error.value, RequestError)
    assert not (tmp_path / "000002").exists()
    server.heal()
    done = await step(trainer, tmp_path, 2, parent=version(1, first))
    await trainer.stop()
    assert same(saved(server, done.adapter), wanted)


async def test_a_server_that_takes_no_pass_at_all_is_refused_and_no_turn_is_to_blame(
    server: TinkerServer, tmp_path: Path
) -> None:
    server.protobuf = False
    trainer = trainer_at(server, tmp_path, method="binary")
    with pytest.raises(ModelRefused, match="the server does not answer as tinker"):
        await step(trainer, tmp_path)
    server.protobuf = True
    assert (await step(trainer, tmp_path)).adapter
    await trainer.stop()


async def test_the_days_budget_stops_training_and_leaves_no_version(server: TinkerServer, tmp_path: Path) -> None:
    poor = trainer_at(server, tmp_path, cloud_budget=1e-6)
    await step(poor, tmp_path)
    with pytest.raises(BackendGone, match="cloud.daily_budget"):
        await step(poor, tmp_path, 2)
    assert not (tmp_path / "000002").exists()
    await poor.stop()


def test_what_the_service_cannot_do_is_refused_by_name(server: TinkerServer, tmp_path: Path) -> None:
    for setting, words in (
        ({"lora": False}, "train.lora.enabled is off"),
        ({"teacher": "ema"}, "train.loss.teacher = ema"),
        ({"distillation_teacher": "live"}, "train.prompt_distillation.teacher is not base"),
        ({"average": 4}, "train.optim.average = 4"),
        ({"lora_alpha": 16.0}, "train.lora.alpha = 16"),
        ({"lora_dropout": 0.1}, "train.lora.dropout = 0.1"),
        ({"lora_targets": ("q_proj",)}, "train.lora.targets is set"),
    ):
        with pytest.raises(ConfigError, match=f"{words}, and train.backend = tinker cannot do that"):
            trainer_at(server, tmp_path, **setting)
