"""The policy at a server of Tinker's protocol: exact tokens and log-probs, versions, faults at each call, money."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.tinker import KEY, TinkerServer, tinker_server
from tinkering import LEAKS, first, policy_at, sdk_leaves_sockets_open, thorough, tiny_folder  # noqa: F401

from openclaw_rl.backends.tinker.policy import TinkerPolicy, needs_scores
from openclaw_rl.backends.tinker.session import Spending
from openclaw_rl.backends.tinker.troubles import fault_of, translated
from openclaw_rl.backends.tinker.troubles import installed_version as sdk_version
from openclaw_rl.errors import BackendDown, BackendGone, ContextOverflow, ModelRefused, RequestError
from openclaw_rl.ports import whole_reply
from openclaw_rl.testing import check_policy
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Version

pytestmark = [*LEAKS, pytest.mark.anyio, pytest.mark.slow]
ASK = Prompt(messages=(Message(role="user", content="w1 w2"),))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    with tinker_server(tiny_folder(tmp_path_factory.mktemp("tiny"))) as running:
        yield running


@pytest.fixture
async def policy(server: TinkerServer, tmp_path: Path) -> AsyncIterator[TinkerPolicy]:
    made = policy_at(server, tmp_path)
    await made.start()
    yield made
    await made.stop()


async def ask(policy: TinkerPolicy, **sampling: Any) -> Completion:
    return await whole_reply(policy.generate(ASK, Sampling(**{"max_tokens": 12, "seed": 3, **sampling})))


def truth(server: TinkerServer, done: Completion, temperature: float = 1.0) -> Any:
    """The log-probs of a reply by the model itself [R]."""
    ids = torch.tensor([[*done.prompt_tokens, *done.reply_tokens]])
    logits = server.base(ids).logits[0, len(done.prompt_tokens) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(done.reply_tokens)[:, None])[:, 0].detach()


def test_it_keeps_the_promises_of_a_policy(server: TinkerServer, tmp_path: Path) -> None:
    check_policy(policy_at(server, tmp_path))


async def test_a_reply_has_the_tokens_that_were_sampled_and_their_log_probs(
    server: TinkerServer, policy: TinkerPolicy
) -> None:
    done = await ask(policy)
    assert done.prompt_tokens == await policy.encode(ASK) == (1, 4, 8, 9, 2, 1, 5)
    assert 1 <= len(done.reply_tokens) <= 12
    assert torch.allclose(torch.tensor(done.logprobs), truth(server, done), atol=1e-5)
    assert done == await ask(policy), "the same seed samples the same reply"
    assert server.keys == {KEY}


@pytest.mark.parametrize("sampling", first([{"temperature": 0.7}, {"temperature": 0.0}, {"top_p": 0.6}, {"top_k": 3}]))
async def test_however_it_was_sampled_the_log_probs_are_those_of_the_whole_distribution_at_its_temperature(
    server: TinkerServer, policy: TinkerPolicy, sampling: dict[str, float]
) -> None:
    assert needs_scores(Sampling(**sampling))
    done = await ask(policy, **sampling)
    wanted = truth(server, done, done.sampling.temperature or 1.0)
    assert torch.allclose(
        torch.tensor(done.logprobs), wanted, atol=1e-5 if done.sampling.temperature in (0, 1) else 0.05
    )


async def test_likeliest_tokens_and_scores_are_the_models_own(server: TinkerServer, policy: TinkerPolicy) -> None:
    done = await ask(policy)
    found = await policy.score(done.prompt_tokens, done.reply_tokens, top_k=3)
    assert torch.allclose(torch.tensor(found.logprobs), truth(server, done), atol=1e-5)
    best = server.base(torch.tensor([done.prompt_tokens])).logits[0, -1].log_softmax(-1).topk(3)
    assert found.top_tokens[0] == tuple(best.indices.tolist())
    assert found.top_logprobs[0] == pytest.approx(best.values.tolist(), abs=1e-5)


async def test_a_stop_string_ends_a_reply_and_penalties_are_not_recorded_as_if_they_had_been_there(
    policy: TinkerPolicy,
) -> None:
    whole = await ask(policy)
    words = whole.reply.content.split()
    done = await ask(policy, stop=(words[2],), presence_penalty=1.0, dry_multiplier=0.8)
    assert done.reply.content.split() == words[:2]
    assert done.finish == "stop"
    assert done.sampling.presence_penalty == done.sampling.dry_multiplier == 0.0


async def test_what_can_never_fit_and_a_version_that_nobody_knows_are_the_callers_fault(policy: TinkerPolicy) -> None:
    assert policy.context == 2048
    with pytest.raises(ContextOverflow):
        await ask(policy, max_tokens=2049)
    with pytest.raises(RequestError, match="no version 4 of"):
        await whole_reply(policy.generate(ASK, Sampling(), version=4))


async def test_a_model_that_the_service_does_not_have_is_refused_with_those_it_has(
    server: TinkerServer, tmp_path: Path
) -> None:
    other = policy_at(server, tmp_path, model=f"{server.model}-8B", cloud_tokenizer=server.model)
    with pytest.raises(
        ModelRefused, match=f"has no model.*set policy.model to one that it has, such as {server.model}"
    ):
        await other.start()
    await other.stop()


async def test_a_version_whose_weights_are_not_there_is_refused_and_the_live_one_answers_on(
    policy: TinkerPolicy, tmp_path: Path
) -> None:
    (tmp_path / "v1").mkdir()
    gone = Version(number=1, parent=0, base="tiny", adapter=str(tmp_path / "v1"))
    with pytest.raises(ModelRefused, match=r"does not record where its weights are.*tinker.json"):
        await policy.load(gone)
    (tmp_path / "v1" / "tinker.json").write_text(
        '{"sampler": "tinker://a/sampler_weights/b", "state": "", "norms": []}'
    )
    with pytest.raises((ModelRefused, BackendDown), match="no weights at tinker://a/sampler_weights/b"):
        await policy.load(gone)
    assert (await ask(policy)).version == policy.live == 0


# --- faults


@pytest.mark.parametrize("status", [408, 429, 500, 503])
@pytest.mark.parametrize("route", first(["asample", "retrieve_future"]))
async def test_what_passes_by_itself_costs_a_reply_only_time(
    server: TinkerServer, policy: TinkerPolicy, route: str, status: int
) -> None:
    wanted = await ask(policy)
    server.fail(route, status)
    assert await ask(policy) == wanted


@pytest.mark.parametrize("route", first(["asample", "create_sampling_session", "retrieve_future"], 2))
async def test_a_lost_session_is_opened_again_under_a_request(
    server: TinkerServer, policy: TinkerPolicy, tmp_path: Path, route: str
) -> None:
    wanted = await ask(policy)
    before = server.calls.count("create_session")
    if route == "create_sampling_session":
        server.forget_sessions()
    else:
        server.fail(route, 410)
    assert await ask(policy) == wanted
    assert server.calls.count("create_session") == before + (route != "retrieve_future")


@pytest.mark.parametrize(
    "route", first(["asample", "client", "create_session", "get_server_capabilities", "create_sampling_session"])
)
async def test_an_account_that_cannot_pay_is_said_at_once_at_any_call(
    server: TinkerServer, tmp_path: Path, route: str
) -> None:
    server.fail(route, *[402] * 3)
    made = policy_at(server, tmp_path)

    async def begin() -> None:
        await made.start()
        await ask(made)

    with pytest.raises(BackendGone, match="requires payment.*add credit") as error:
        await begin()
    assert KEY not in str(error.value)
    server.heal()
    await begin()
    await made.stop()


async def test_a_wrong_key_is_refused_and_never_shown(
    server: TinkerServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = policy_at(server, tmp_path, cloud_key="tml-wrong-as-can-be")
    assert "tml-wrong" not in repr(wrong._settings)
    with pytest.raises(ModelRefused, match="refuses the key.*correct TINKER_API_KEY") as error:
        await wrong.start()
    await wrong.stop()
    none = policy_at(server, tmp_path, cloud_key=None)
    with pytest.raises(ModelRefused, match="there is no key for the service; set TINKER_API_KEY"):
        await none.start()
    assert "tml-wrong" not in caplog.text + str(error.value)


async def test_nobody_at_the_address_is_said_at_once(server: TinkerServer, tmp_path: Path) -> None:
    away = policy_at(server, tmp_path, cloud_url="http://127.0.0.1:9")
    with pytest.raises(BackendDown, match="cannot reach the service at http://127.0.0.1:9.*see TINKER_BASE_URL"):
        await away.start()
    await away.stop()


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [("user: the prompt is odd", RequestError, "odd"), ("server: a GPU fell over", BackendDown, "fell over")],
)
async def test_a_request_that_was_taken_and_failed_says_whose_fault_it_was(
    server: TinkerServer, policy: TinkerPolicy, fault: str, kind: type[Exception], words: str
) -> None:
    server.fail("asample", fault)
    with pytest.raises(kind, match=words):
        await ask(policy)
    assert (await ask(policy)).finish in ("stop", "length")


@pytest.mark.skipif(sdk_version() < "0.3", reason="older SDKs let the service find out by itself")
async def test_a_client_that_goes_away_ends_what_the_service_does_for_it(
    server: TinkerServer, policy: TinkerPolicy
) -> None:
    server.pause = 1.0
    before, asked = len(server.cancelled), server.calls.count("retrieve_future")
    reading = asyncio.create_task(ask(policy))
    async with asyncio.timeout(10):
        while server.calls.count("retrieve_future") == asked:
            await asyncio.sleep(0.01)
        reading.cancel()
        while len(server.cancelled) == before:
            await asyncio.sleep(0.01)
    server.pause = 0.0
    assert (await ask(policy)).reply_tokens


async def test_patience_ends(server: TinkerServer, tmp_path: Path) -> None:
    hasty = policy_at(server, tmp_path)
    await hasty.start()
    hasty._session.access = replace(hasty._session.access, patience=1.5)
    server.fail("asample", *[503] * 8)
    with pytest.raises(BackendDown, match="no answer within 1.5 s; see that it is up; a server of another protocol"):
        await ask(hasty)
    server.heal()
    await hasty.stop()


# --- money, releases


async def test_the_days_budget_ends_what_costs_money_and_names_the_setting(
    server: TinkerServer, tmp_path: Path
) -> None:
    poor = policy_at(server, tmp_path, cloud_budget=30e-6)
    await poor.start()
    done = await ask(poor)
    spent = poor.health
    assert (spent["tokens_prefill"], spent["tokens_sample"]) == (7, len(done.reply_tokens))
    assert spent["cost_today"] == pytest.approx((7 * 1 + len(done.reply_tokens) * 2) / 1e6)
    while poor.health["cost_today"] < 30e-6:
        await ask(poor)
    with pytest.raises(BackendGone, match=r"cloud.daily_budget = 3e-05 is spent.*raise it"):
        await ask(poor)
    await poor.stop()


def test_processes_of_a_run_share_a_budget_and_a_new_day_begins_at_nothing(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    one, other = (
        Spending(tmp_path, prices={"train": 2.0}, budget=3.0, clock=lambda: now[0], owner=name) for name in "ab"
    )
    one.add(train=1_000_000)
    other.add(train=400_000)
    assert one.today == other.today == pytest.approx(2.8)
    one.refuse_beyond()
    now[0] += 2
    other.add(train=100_000)
    with pytest.raises(BackendGone, match="3.00 by estimate since midnight"):
        one.refuse_beyond()
    now[0] += 86_400
    assert one.today == 0.0


async def test_a_server_of_another_protocol_is_refused_with_the_sdk_that_is_installed(
    server: TinkerServer, policy: TinkerPolicy
) -> None:
    server.protobuf = False
    with pytest.raises(
        ModelRefused, match=rf"not answer as tinker {sdk_version()} expects.*the SDK that the server was"
    ):
        await ask(policy)
    server.protobuf = True


def test_what_the_sdk_says_of_releases_is_no_fault_of_a_request() -> None:
    old = RuntimeError("Your Tinker SDK version is no longer supported. Please upgrade to the latest version.")
    old.status_code = 400  # type: ignore[attr-defined]
    said = str(translated(old, "opening a session", key=None))
    assert said.startswith(f"the service refuses tinker {sdk_version()}: opening a session: Your Tinker SDK version")
    assert said.endswith("; pip install -U tinker")
    other = translated(AssertionError("asample promises always carry sample_sequence_ids"), "sampling", key=None)
    assert isinstance(other, ModelRefused)
    changed = translated(TypeError("sample() got an unexpected keyword argument 'stop'"), "sampling", key=None)
    assert str(changed).startswith("the SDK has changed: sampling: sample() got")


def test_a_release_of_the_sdk_that_cannot_work_is_refused_by_name() -> None:
    import tinker

    assert fault_of("0.36.0", tinker) is None
    assert fault_of("0.24.1", tinker) == "tinker 0.24.1 is refused: it uses an older protocol than 0.25"
    other = SimpleNamespace(**{name: getattr(tinker, name) for name in ("ServiceClient", "SamplingClient", "types")})
    assert "tinker 0.99 is refused: it has no TrainingClient.forward" in str(fault_of("0.99", other))
