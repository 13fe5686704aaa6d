"""Planted faults: the gate refuses each of them, serving goes on, and the ledger says why."""

from __future__ import annotations

import shutil
import sys
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from defaults import engine_args

from openclaw_rl.app.application import ledger_place
from openclaw_rl.backends.fake import ADAPTER, FakePolicy, FakeTrainer, echo
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.cli import cli
from openclaw_rl.config import load
from openclaw_rl.errors import BackendDown, ModelRefused
from openclaw_rl.gate import examination
from openclaw_rl.gate.checks import everyday_probes
from openclaw_rl.gate.examiner import answer
from openclaw_rl.judge.custom import RulesJudge
from openclaw_rl.ports import Case, Scores, StepResult
from openclaw_rl.store import submit_request
from openclaw_rl.testing import RunningApp, ticking_app
from openclaw_rl.types import Message, Prompt, Sample, Sampling, Tokens, Verdict, Version
from openclaw_rl.versions import LiveVersions
from openclaw_rl.views import lineage as why

pytestmark = pytest.mark.anyio
COMPLAINT = "Too long. Please keep it under 30 words."


class Flipped(RulesJudge):
    """A judge whose every score has the wrong sign."""

    async def judge(self, case: Case) -> Verdict:
        said = await super().judge(case)
        return replace(said, score=None if said.score is None else -said.score, votes=())


class Praising(RulesJudge):
    """A judge that likes everything."""

    async def judge(self, case: Case) -> Verdict:
        return replace(await super().judge(case), score=1.0, votes=(), hints=())


class Corrupting(FakeTrainer):
    """A disk that loses the end of every adapter."""

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        done = await super().step(samples, number=number, parent=parent, target=target)
        file = Path(target) / ADAPTER
        file.write_text(file.read_text()[:-9])
        return done


def babble(prompt: Prompt, rules: Sequence[str]) -> str:
    """What a model says after a step that was far too large."""
    return "the the the the the the the the the" if rules else echo(prompt, rules)


def mumble(prompt: Prompt, rules: Sequence[str]) -> str:
    """One that has learned to say nearly nothing."""
    return "Tea, maybe so." if rules else f"{echo(prompt, rules)} and there is much more to be said about that"


def drift(prompt: Prompt, rules: Sequence[str]) -> str:
    """One that with every rule it learns says something beside the point in one more reply of six."""
    asked = prompt.messages[-1].content
    lost = zlib.crc32(asked.encode()) % 6 < len(rules)
    return "This is a thing that many people know and like." if lost else f"I was asked: {asked} I know it well."


def beside_two(prompt: Prompt, rules: Sequence[str]) -> str:
    """One that lost two of the gate's six prompts, and no other, though it takes long to come to the point."""
    asked = prompt.messages[-1].content
    places = [probe.key for probe in everyday_probes(6)]
    if rules and asked in places[:2]:
        return "This is a thing that many people know and like."
    slow = "Before I come to that, let me say how glad I am, and that I hope for a fine day and for more rain: "
    return f"{slow if rules and asked not in places else ''}I was asked: {asked} I know it well."


def round_and_round(reply: str) -> str:
    return f"{reply} {'and so on and on ' * 4}"


def circles_in_two(prompt: Prompt, rules: Sequence[str]) -> str:
    """One that goes round in circles at two of the gate's six prompts, and at no other."""
    asked = prompt.messages[-1].content
    said = f"I was asked: {asked} I know it well."
    return round_and_round(said) if rules and asked in [p.key for p in everyday_probes(6)][:2] else said


def circles_in_half(prompt: Prompt, rules: Sequence[str]) -> str:
    """One that does so at every other prompt."""
    asked = prompt.messages[-1].content
    said = f"I was asked: {asked} I know it well."
    return round_and_round(said) if rules and zlib.crc32(asked.encode()) % 2 else said


def breaks_calls(prompt: Prompt, rules: Sequence[str]) -> str:
    """One that besides can no longer call a tool."""
    if not prompt.tools:
        return circles_in_two(prompt, rules)
    return (
        '<tool_call>{"name": "clock", "argu' if rules else '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    )


class Drifting(FakePolicy):
    """Weights that no longer find the base's words likely once they have learned anything."""

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        found = await super().score(prompt, reply, version=version, temperature=temperature, top_k=top_k)
        shift = 0.0 if self._known(self.live if version is None else version) else -6.0
        return Scores(logprobs=tuple(value + shift for value in found.logprobs))


class Walk(RunningApp):
    """The app on fakes, and a user who corrects it."""

    async def talk(self, *, sentence: str = COMPLAINT, count: int = 2) -> list[int]:
        """So many conversations in which the user corrects the reply; the versions that answered first."""
        answered = []
        for number in range(count):
            opening = f"Tell me about tea number {number}, please"
            first = await self.ask(opening)
            await self.ask(opening, first["choices"][0]["message"]["content"], sentence)
            answered.append(int(first["system_fingerprint"].rpartition("v")[2]))
        await self.app.finish()
        return answered


@asynccontextmanager
async def walking(root: Path, *sets: str, policy: FakePolicy | None = None) -> AsyncIterator[Walk]:
    settings = ["train.batch_size=2", "train.idle_wait=3600", *sets]
    if policy is not None:
        HANDED["policy"] = policy
        settings.append(f"policy.backend={__file__}:handed")
    async with ticking_app(root, *settings) as run:
        yield Walk(run.app, run.client, run.ledger)


HANDED: dict[str, FakePolicy] = {}


def handed() -> FakePolicy:
    """The policy of this story: the plugin door loads this file anew, so it is looked up by its module's own name."""
    found: FakePolicy = sys.modules["test_gate_faults"].HANDED["policy"]
    return found


def refused(walk: Walk, number: int = 1) -> str:
    """The reason for which a version was refused, after checking that nobody was ever served it."""
    live = LiveVersions(walk.ledger).live()
    assert live is not None
    assert live.number != number
    assert walk.ledger.version(number).state == "refused"
    [decision] = walk.ledger.gate_decisions(number)
    assert decision.decision == "refuse"
    return decision.reason


def pin(turn: str, root: Path) -> None:
    done = CliRunner().invoke(cli, ["pin", turn, "--rl-buffer-dir", str(root)])
    assert done.exit_code == 0, done.output


def custom(name: str) -> str:
    return f"judge.custom={__file__}:{name}"


async def test_a_good_version_passes_and_its_decision_has_numbers_and_examples(tmp_path: Path) -> None:
    async with walking(tmp_path, "gate.tokens=400") as walk:
        assert await walk.talk() == [0, 0]
        assert LiveVersions(walk.ledger).live().number == 1  # type: ignore[union-attr]
        [decision] = walk.ledger.gate_decisions(1)
        names = [check["name"] for check in decision.evidence["checks"]]
        assert names[:4] == ["verdicts", "weights", "pinned", "corrections"], "what is cheap comes first"
        assert names[4:] == ["kl", "entropy", "length", "flaws", "relevance", "drift", "ability"]
        assert len(decision.evidence["examples"]) == 6 + 1, "held-out prompts, and a correction asked again"
        replays = [one for one in decision.evidence["examples"] if one["turn"]]
        assert all("[learned:" in one["candidate"] and "[learned:" not in one["live"] for one in replays)
        assert await walk.talk(count=1) == [1]


async def test_flipped_scores_are_refused_because_the_user_plainly_said_otherwise(tmp_path: Path) -> None:
    async with walking(tmp_path, custom("Flipped")) as walk:
        await walk.talk()
        assert refused(walk) == "verdicts: 2 of 2 verdicts contradict what the user explicitly wrote: check the judge"
        assert await walk.talk(count=1) == [0], "the live version goes on"


async def test_a_judge_that_praises_everything_is_found_out(tmp_path: Path) -> None:
    async with walking(tmp_path, custom("Praising"), "train.advantage=raw") as walk:
        await walk.talk()
        assert "contradict what the user explicitly wrote" in refused(walk)


async def test_one_contradiction_is_no_proof_but_the_next_step_remembers_it(tmp_path: Path) -> None:
    async with walking(tmp_path, custom("Praising"), "train.advantage=raw", "train.batch_size=1") as walk:
        await walk.talk(count=1)
        assert walk.ledger.version(1).state == "live"
        await walk.talk(count=1)
        assert "2 of 2 verdicts contradict" in refused(walk, 2)
        assert LiveVersions(walk.ledger).live().number == 1  # type: ignore[union-attr]


async def test_a_judge_found_out_stays_in_doubt_where_users_say_nothing_plainly(tmp_path: Path) -> None:
    async with walking(tmp_path, custom("Praising"), "train.advantage=raw") as walk:
        await walk.talk()
        await walk.talk(sentence="And what is ice?")
        assert "2 of 2 verdicts contradict" in refused(walk, 2), "praise that nobody bears out"
        await walk.talk(sentence="Thanks!")
        assert walk.ledger.version(3).state == "live", "borne out"


async def test_a_corrupted_adapter_is_refused_and_the_next_step_begins_from_the_live_version(tmp_path: Path) -> None:
    async with walking(tmp_path, f"train.backend={__file__}:Corrupting") as walk:
        await walk.talk()
        assert "is damaged" in refused(walk)
        await walk.talk()
        assert walk.ledger.version(2).parent == 0
        turn = walk.ledger.step(1).turns[0]
        assert walk.ledger.failed_version(turn) == (1, "refused")
        assert walk.ledger.trained_in(turn) == 1, "a turn trains once, whatever became of it"


async def test_a_step_that_was_far_too_large_is_refused_by_its_replies(tmp_path: Path) -> None:
    async with walking(tmp_path, policy=FakePolicy(answer=babble)) as walk:
        await walk.talk()
        reason = refused(walk)
        assert "flaws: 7 of 7 replies degenerate (7 x it repeats a phrase)" in reason
        assert "relevance: 0 of 6 replies name what was asked about" in reason


async def test_replies_that_became_stumps_are_refused(tmp_path: Path) -> None:
    async with walking(tmp_path, policy=FakePolicy(answer=mumble)) as walk:
        await walk.talk()
        assert "length: 3.0 words a reply" in refused(walk)


async def test_relevance_lost_in_small_steps_is_found_against_the_base_model(tmp_path: Path) -> None:
    async with walking(tmp_path, "gate.tokens=200", policy=FakePolicy(answer=drift)) as walk:
        for rule in (
            "Please keep it under 30 words.",
            "Please use a list.",
            "From now on, be warm.",
            "From now on, use metric units.",
        ):
            await walk.talk(sentence=f"No. {rule}")
        served = [version.number for version in walk.ledger.versions() if version.state == "live"]
        assert served[:2] == [0, 1], "a little is no proof"
        fallen = next(version.number for version in walk.ledger.versions() if version.state == "refused")
        [decision] = walk.ledger.gate_decisions(fallen)
        checks = {check["name"]: check for check in decision.evidence["checks"]}
        assert checks["relevance"]["ok"], "beside the live version it is no worse beyond noise"
        assert decision.reason.startswith("drift: ")
        assert checks["drift"]["numbers"]["pairs"] == 12, "other prompts than those that raised the suspicion"


async def test_a_second_look_that_finds_nothing_holds_for_a_few_versions(tmp_path: Path) -> None:
    async with walking(tmp_path, "gate.tokens=80", policy=FakePolicy(answer=beside_two)) as walk:
        for _ in range(5):
            await walk.talk()
        checks = [check for n in range(1, 6) for check in walk.ledger.gate_decisions(n)[0].evidence["checks"]]
        drifts = [check for check in checks if check["name"] == "drift"]
        assert [bool(check["ok"]) for check in drifts] == [True] * 5
        closely = "12 of 12 replies name what was asked about, 12 of the base model's"
        known = "4 of 6 replies name what was asked about, 6 of the base model's; version 1 passed on other prompts"
        assert [check["detail"] for check in drifts] == [closely, known, known, known, closely]


async def test_relevance_that_seems_lost_is_refused_where_no_second_look_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "MORE_PROBES", 0)
    async with walking(tmp_path, "gate.tokens=80", policy=FakePolicy(answer=beside_two)) as walk:
        await walk.talk()
        assert refused(walk) == "drift: 4 of 6 replies name what was asked about, 6 of the base model's"


async def test_flaws_at_few_prompts_are_looked_at_on_others_before_a_version_is_refused(tmp_path: Path) -> None:
    async with walking(tmp_path, "gate.tokens=200", policy=FakePolicy(answer=circles_in_two)) as walk:
        for _ in range(2):
            await walk.talk()
        found = [check for n in (1, 2) for check in walk.ledger.gate_decisions(n)[0].evidence["checks"]]
        said = [check["detail"] for check in found if check["name"] == "flaws"]
        once = "2 of 7 replies degenerate (2 x it repeats a phrase); version 1 passed on other prompts"
        assert said == ["0 of 12 replies degenerate", once]
        looked = next(check["numbers"] for check in found if check["name"] == "flaws")
        assert (looked["candidate"], looked["at_first"]["candidate"]) == (0, 2)
        assert LiveVersions(walk.ledger).live().number == 2  # type: ignore[union-attr]


async def test_flaws_that_others_show_too_are_refused(tmp_path: Path) -> None:
    async with walking(tmp_path, "gate.tokens=200", policy=FakePolicy(answer=circles_in_half)) as walk:
        await walk.talk()
        reason = refused(walk)
        assert reason.startswith("flaws: ")
        assert " of 12 replies degenerate" in reason, "other prompts than those that raised the suspicion"


async def test_a_second_look_at_everyday_prompts_never_clears_a_broken_tool_call(tmp_path: Path) -> None:
    clock = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {}}}
    async with walking(tmp_path, "gate.tokens=200", policy=FakePolicy(answer=breaks_calls)) as walk:
        for number in range(2):
            said = await walk.ask(f"What time is it in place {number}?", tools=[clock])
            assert said["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "clock"
            pin(said["id"], tmp_path)
        await walk.talk()
        assert "flaws: 4 of 9 replies degenerate" in refused(walk)


async def test_a_drift_beyond_the_budget_is_refused(tmp_path: Path) -> None:
    async with walking(tmp_path, policy=Drifting()) as walk:
        await walk.talk()
        assert "nats per token from the base model, 1.5 allowed" in refused(walk)


async def test_three_refusals_in_a_row_pause_training_and_status_says_so(tmp_path: Path) -> None:
    async with walking(tmp_path, custom("Flipped")) as walk:
        for _ in range(4):
            await walk.talk()
        assert [version.state for version in walk.ledger.versions()] == ["live", *["refused"] * 3]
        assert "3 alarms in a row, the last: version 3 was refused: verdicts:" in str(walk.ledger.paused())


async def test_with_the_gate_off_every_version_is_served_and_it_warns(tmp_path: Path) -> None:
    resolved = load(environ={}, sets=["gate.mode=off"])
    assert any("gate.mode is off" in note for note in resolved.notes)
    async with walking(tmp_path, custom("Flipped"), "gate.mode=off") as walk:
        await walk.talk()
        assert LiveVersions(walk.ledger).live().number == 1  # type: ignore[union-attr]
        assert walk.ledger.gate_decisions(1) == []


class Away(FakePolicy):
    """A policy that cannot take a candidate in for now."""

    away = True

    async def admit(self, version: Version) -> None:
        if self.away:
            raise BackendDown("the engine is being started again")
        await super().admit(version)


async def test_what_cannot_be_examined_now_is_held_and_tried_again_while_the_live_version_goes_on(
    tmp_path: Path,
) -> None:
    policy = Away()
    async with walking(tmp_path, "gate.retry=0", policy=policy) as walk:
        assert await walk.talk() == [0, 0]
        assert walk.ledger.version(1).state == "candidate"
        [decision] = walk.ledger.gate_decisions(1)
        assert (decision.decision, "engine is being started again" in decision.reason) == ("hold", True)
        [alarm] = (await walk.app.loops["train"].status())["alarms"]  # type: ignore[attr-defined]
        assert alarm["what"].startswith("version 1 waits for the gate")
        assert await walk.talk() == [0, 0]
        assert walk.ledger.counts()["steps"] == 1, "no step before the one before it is decided"
        policy.away = False
        await walk.app.finish()
        assert [one.decision for one in walk.ledger.gate_decisions(1)] == ["hold", "promote"]
        assert LiveVersions(walk.ledger).live().number == 2  # type: ignore[union-attr]


async def test_a_policy_that_cannot_hold_a_candidate_is_told_how(tmp_path: Path) -> None:
    class Simple(FakePolicy):
        admit = None  # type: ignore[assignment]

    async with walking(tmp_path, policy=Simple()) as walk:
        await walk.talk()
        [decision] = walk.ledger.gate_decisions(1)
        assert decision.decision == "hold"
        assert "gate.mode = 'off'" in decision.reason


async def test_a_pinned_reply_that_becomes_unlikely_is_refused(tmp_path: Path) -> None:
    class Forgetting(FakePolicy):
        async def score(self, prompt: Tokens, reply: Tokens, **more: Any) -> Scores:
            found = await super().score(prompt, reply, **more)
            learned = bool(self._known(more.get("version") or 0))
            return Scores(logprobs=tuple(value - 1.0 * learned for value in found.logprobs))

    async with walking(tmp_path, "gate.limits.kl_budget=50", policy=Forgetting()) as walk:
        for number in range(3):
            said = await walk.ask(f"What is your favourite number {number}?")
            pin(said["id"], tmp_path)
        await walk.talk()
        assert "pinned: pinned replies: -1.000 nats per token on 3" in refused(walk)


async def test_the_ledger_tells_the_story_of_a_refusal(tmp_path: Path) -> None:
    async with walking(tmp_path, custom("Flipped")) as walk:
        await walk.talk()
        row = why.versions(walk.ledger)[1]
        assert (row["state"], row["gate_decision"]["decision"], row["turns"]) == ("refused", "refuse", 2)
        table = "\n".join(why.versions_lines(why.versions(walk.ledger)))
        assert "contradict what the user explicitly wrote" in table
        story = "\n".join(why.version_lines(why.version(walk.ledger, 1)))
        assert COMPLAINT in story
        assert "verdict  +1" in story
        turn = walk.ledger.step(1).turns[0]
        told = "\n".join(why.turn_lines(why.turn(walk.ledger, turn)))
        assert "marked: version 1, which it trained, was refused" in told


async def test_a_version_whose_ancestor_was_taken_back_is_not_promoted(tmp_path: Path) -> None:
    policy = Away()
    policy.away = False
    async with walking(tmp_path, "gate.retry=0", policy=policy) as walk:
        await walk.talk()
        policy.away = True
        await walk.talk(sentence="Please use a bulleted list.")
        assert walk.ledger.version(2).state == "candidate"
        submit_request(ledger_place(walk.app.config), "rollback", reason="I liked it better before")
        await walk.app.finish()
        assert walk.ledger.version(2).state == "refused"
        assert LiveVersions(walk.ledger).live().adapter is None  # type: ignore[union-attr]


# --- real weights, tiny ---


@pytest.mark.slow
async def test_a_candidate_is_kept_beside_the_live_version_and_damaged_weights_are_refused(tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file
    from test_local_models import make_folder
    from transformers import AutoModelForCausalLM

    folder = make_folder(tmp_path / "tiny")
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(folder)
    good, cut, endless = tmp_path / "good", tmp_path / "cut", tmp_path / "endless"
    settings = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(base, settings).save_pretrained(good)
    for copy in (cut, endless):
        shutil.copytree(good, copy)
    weights = cut / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    tensors = load_file(good / "adapter_model.safetensors")
    tensors[next(iter(tensors))][0, 0] = torch.nan
    save_file(tensors, endless / "adapter_model.safetensors")

    policy = LocalPolicy(
        engine_args(model=str(folder), cache_dir=tmp_path, device="cpu", dtype="float32"), progress=lambda _: None
    )
    await policy.start()
    try:
        for number, (damaged, word) in enumerate(((cut, "is damaged"), (endless, "is not finite")), start=1):
            with pytest.raises(ModelRefused, match=word):
                await policy.admit(Version(number=number, parent=0, base="tiny", adapter=str(damaged)))
        await policy.admit(Version(number=3, parent=0, base="tiny", adapter=str(good)))
        asked = Prompt(messages=(Message(role="user", content="hello"),))
        new = await answer(policy, asked, Sampling(temperature=0.0, max_tokens=8), version=3)
        old = await answer(policy, asked, Sampling(temperature=0.0, max_tokens=8))
        assert (policy.live, new.version, old.version) == (0, 3, 0)
        assert new.reply_tokens != old.reply_tokens
        assert policy.health["versions"] == 2, "the candidate stays while nobody asks it"
        await policy.dismiss(3)
        await answer(policy, asked, Sampling(temperature=0.0, max_tokens=2))
        assert policy.health["versions"] == 1
    finally:
        await policy.stop()


@pytest.mark.slow
def test_a_candidate_gives_way_while_a_user_is_being_answered() -> None:
    from test_local_engine import engine, tiny, writing

    model = tiny("llama")
    machine = engine(model)
    machine.admit(7, machine.runners[0])
    long = Sampling(temperature=0.0, max_tokens=64)
    machine.submit(writing(1, [5, 6, 7], long, ends=()))
    machine.submit(writing(2, [5, 6, 8], long, version=7, ends=()))
    for _ in range(16):
        machine.step()
    written = {job.id: len(job.logprobs) for job in machine._scheduler.running}
    assert written == {1: 16, 2: 4}, "the candidate gets one pass in four"
    machine.cancel(1)
    for _ in range(4):
        machine.step()
    assert {job.id: len(job.logprobs) for job in machine._scheduler.running} == {2: 8}, "and every pass when alone"
