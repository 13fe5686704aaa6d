"""Judge models by name: two duties, one or two processes, an address; a model that cannot start holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from judges import LIMITS, rules_judge, settings

from openclaw_rl.app.devices import judge_device
from openclaw_rl.app.judges import build_model_judge
from openclaw_rl.backends.local.classifier.messages import label_roles
from openclaw_rl.config import load
from openclaw_rl.errors import BackendDown, BackendError, JudgeUnavailable, ModelRefused
from openclaw_rl.judge.classifier import ClassifierJudge
from openclaw_rl.judge.hosted import HostedJudge, HostedParts
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.parts import PairJudge, at_work, starting
from openclaw_rl.judge.prompt import PromptBuilder, PromptSettings
from openclaw_rl.judge.voters import EndpointSettings, EndpointVoter
from openclaw_rl.ports import ClassifierOpinion
from openclaw_rl.testing import FakeJudge, ScriptedPolicy, make_case, make_message
from openclaw_rl.types import Message, Sampling


class Model:
    """A hosted model that fails to start as often as it is told."""

    name = "toy"

    def __init__(self, *troubles: Exception, found: ClassifierOpinion | Exception | None = None) -> None:
        self.troubles, self.found, self.log = list(troubles), found, list[str]()
        self.asked: list[dict[str, str]] = []

    @property
    def health(self) -> Mapping[str, Any]:
        return {"state": "ready", "device": "cpu", "memory": 2**30, "pid": 7}

    async def start(self) -> None:
        self.log.append("start")
        if self.troubles:
            raise self.troubles.pop(0)

    async def stop(self) -> None:
        self.log.append("stop")

    async def classify(self, *, request: str, reply: str, after: str) -> ClassifierOpinion:
        self.asked.append({"request": request, "reply": reply, "after": after})
        if isinstance(self.found, Exception):
            raise self.found
        assert self.found is not None
        return self.found


def hosted(model: Model, pauses: list[float] | None = None) -> HostedJudge:
    async def sleep(seconds: float) -> None:
        assert pauses is not None
        pauses.append(seconds)
        await asyncio.sleep(0)

    return HostedJudge("models/prm", "scores", lambda: HostedParts(model=model, judge=FakeJudge(0.5)), sleep=sleep)


@pytest.mark.anyio
async def test_a_hosted_judge_is_unavailable_until_its_model_runs_and_then_asks_it() -> None:
    model = Model()
    judge = hosted(model)
    assert at_work(judge) == "models/prm, which is being loaded"
    with pytest.raises(JudgeUnavailable, match="is being loaded"):
        await judge.judge(make_case())
    judge.begin()
    await judge.first_try()
    assert (await judge.judge(make_case())).score == 0.5
    assert judge.report() == {
        "model": "models/prm",
        "duty": "scores",
        "state": "ready",
        "device": "cpu",
        "memory": 2**30,
        "pid": 7,
        "restarts": None,
    }
    await judge.stop()
    await judge.stop()
    assert model.log == ["start", "stop"]


@pytest.mark.anyio
async def test_a_model_that_cannot_start_is_an_alarm_with_its_remedy_and_is_tried_again() -> None:
    refused = ModelRefused("it needs 9 GiB, 2 are left", remedy="choose a smaller model")
    model, pauses = Model(refused, RuntimeError("odd")), list[float]()
    judge = hosted(model, pauses)
    judge.begin()
    await judge.first_try()
    [alarm] = judge.alarms()
    assert alarm.what == "the judge model models/prm cannot be started: it needs 9 GiB, 2 are left"
    assert alarm.remedy == "choose a smaller model; turns wait, serving continues"
    with pytest.raises(JudgeUnavailable, match="9 GiB"):
        await judge.judge(make_case())
    while judge.alarms():
        await asyncio.sleep(0.001)
    assert pauses == [10.0, 20.0]
    assert model.log == ["start", "stop", "start", "stop", "start"]
    assert (await judge.judge(make_case())).score == 0.5
    await judge.stop()


@pytest.mark.anyio
async def test_one_model_scores_and_the_other_gives_the_hints() -> None:
    scorer, hinter = FakeJudge(-1.0, "A hint of the scorer."), FakeJudge(1.0, "Use metric units, please.")
    pair = PairJudge(scorer=scorer, hinter=hinter)
    verdict = await pair.judge(make_case("in cm please"))
    assert (verdict.score, verdict.rules) == (-1.0, ("Use metric units, please.",))
    tool = make_case(make_message("tool", "exit code 1"))
    assert (await pair.judge(tool)).score == -1.0
    assert len(hinter.cases) == 1, "where the user says nothing nobody is asked for hints"
    told = await pair.explain(make_case("in cm please"))
    assert told.verdict is not None
    assert told.verdict.rules == ("Use metric units, please.",)


def built(*sets: str, **environ: str) -> Any:
    return build_model_judge(load(environ=environ, sets=list(sets)).config)


def test_either_name_stands_for_both_duties_and_two_names_are_two_processes() -> None:
    assert built() is None
    for name in ("PRM_MODEL_PATH", "JUDGE_MODEL_PATH"):
        alone = built(**{name: "a/model"})
        assert isinstance(alone, HostedJudge)
        assert alone.report()["duty"] == "scores and hints"
    same = built(PRM_MODEL_PATH="a/model", JUDGE_MODEL_PATH="a/model")
    assert isinstance(same, HostedJudge)
    both = built(PRM_MODEL_PATH="a/scorer", JUDGE_MODEL_PATH="a/hinter")
    assert isinstance(both, PairJudge)
    assert [each.report() for each in starting(both) if isinstance(each, HostedJudge)] == [
        {"model": f"a/{who}", "duty": duty, "state": "starting", "device": None, "memory": None, "pid": None}
        | {"restarts": None}
        for who, duty in (("scorer", "scores"), ("hinter", "hints"))
    ]


@pytest.mark.parametrize(
    ("sets", "note"),
    [
        (["judge.kind=rules"], "judge.models changes nothing: judge.kind = rules selects the judge"),
        (["judge.custom=mine:score"], "judge.models changes nothing: judge.custom selects the judge"),
        (["judge.llm.base_url=http://h/v1"], "judge.llm.base_url changes nothing: judge.models selects the judge"),
        ([], None),
    ],
)
def test_a_name_that_changes_nothing_is_said_so(sets: list[str], note: str | None) -> None:
    notes = load(environ={}, sets=["judge.models.score=a/prm", *sets]).notes
    assert [each for each in notes if "changes nothing" in each] == ([note] if note else [])


def test_an_address_is_asked_and_not_hosted() -> None:
    judge = built(PRM_MODEL_PATH="http://host:9/v1/")
    assert isinstance(judge, LlmJudge)
    assert starting(judge) == ()


@pytest.mark.parametrize(
    ("sets", "devices"),
    [
        ([], ["cuda:6", "cuda:6"]),
        (["judge.models.device=cpu"], ["cpu", "cpu"]),
        (["gpus.judge=[3]"], ["cuda:3", "cuda:3"]),
        (["gpus.judge=[3, 5]"], ["cuda:3", "cuda:5"]),
        (["gpus.judge=1", "gpus.train=4", "gpus.rollout=2"], ["cuda:6", "cuda:6"]),
        (["gpus.judge=2", "gpus.train=[0, 1]"], ["cuda:2", "cuda:3"]),
        (["gpus.judge=0"], ["auto", "auto"]),
    ],
)
def test_the_judges_models_run_on_the_devices_that_are_theirs(sets: list[str], devices: list[str]) -> None:
    config = load(environ={}, sets=sets).config
    assert [judge_device(config, number, visible=8) for number in (0, 1)] == devices


@pytest.mark.anyio
async def test_an_endpoint_without_a_model_name_is_asked_for_its_first() -> None:
    def serves(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/models"):
            return httpx2.Response(200, json={"data": [{"id": "its-own"}]})
        return httpx2.Response(200, json={"choices": [{"message": {"content": request.content.decode()}}]})

    endpoint = EndpointSettings(base_url="http://host/v1", model="", api_key=None, timeout=1, retries=0)
    voter = EndpointVoter(endpoint, Sampling(), transport=httpx2.MockTransport(serves))
    ballot = await voter.ask([Message(role="user", content="?")], schema={})
    assert '"model":"its-own"' in (ballot.text or "")


@pytest.mark.anyio
async def test_a_model_that_runs_here_is_made_to_begin_with_json_and_ends_with_it() -> None:
    class Open(ScriptedPolicy):
        def __init__(self) -> None:
            super().__init__('r", "score": -1, "hint": null, "kind": null} And so on, for ever')
            self.abilities = frozenset({"opening"})

    policy = Open()
    verdict = await LlmJudge(settings=settings(), policy=policy).judge(make_case("hm, no"))
    assert (verdict.score, verdict.votes) == (-1, (-1, -1, -1))
    assert {prompt.opening for prompt, _, _ in policy.requests} == {'{"reason": "'}


def test_a_models_own_tokens_and_context_cut_the_evidence() -> None:
    class Counter:
        context = 1_000

        def count(self, text: str) -> int:
            return len(text.split())

    case = make_case("no " * 4_000)
    free = PromptBuilder(PromptSettings(folder=None, template="turn", budget=3_000, window=6))
    tight = PromptBuilder(
        PromptSettings(folder=None, template="turn", budget=3_000, window=6), answer=100, counter=Counter()
    )
    assert len(free.question(case).text.split()) > 3_000
    assert len(tight.question(case).text.split()) < 900


# --- a classifier as scorer


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("p", "neutral", "score"), [(0.95, 0.0, 0.9), (0.1, 0.3, -0.8), (0.5, 0.0, 0.0), (0.9, 0.6, None)]
)
async def test_the_probability_p_of_served_well_is_the_score_2p_less_1(
    p: float, neutral: float, score: float | None
) -> None:
    model = Model(found=ClassifierOpinion(positive=p, neutral=neutral))
    verdict = await ClassifierJudge(model, limits=LIMITS).judge(make_case("no bullet lists please", reply="- a"))
    assert verdict.score == (None if score is None else pytest.approx(score))
    assert model.asked == [{"request": "list files", "reply": "- a", "after": "no bullet lists please"}]
    assert verdict.judge == "classifier:toy"
    assert verdict.rules == (await rules_judge().judge(make_case("no bullet lists please", reply="- a"))).rules


@pytest.mark.anyio
async def test_a_classifier_is_silent_on_tool_results_and_where_it_fails_and_waits_where_it_is_down() -> None:
    judge = ClassifierJudge(Model(found=BackendError("odd")), limits=LIMITS)
    assert (await judge.judge(make_case("fine"))).score is None
    assert (await judge.judge(make_case(make_message("tool", "done")))).note == "the user wrote nothing"
    with pytest.raises(JudgeUnavailable):
        await ClassifierJudge(Model(found=BackendDown("died")), limits=LIMITS).judge(make_case("fine"))


def test_labels_are_told_by_their_names() -> None:
    roles = label_roles(["NEGATIVE", "neutral", "Positive"], name="m")
    assert (roles.positive, roles.negative, roles.neutral, roles.infers) == ((2,), (0,), (1,), False)
    found = roles.classification([0.1, 0.6, 0.3])
    assert (found.positive, found.neutral) == (pytest.approx(0.75), 0.6)
    nli = label_roles(["entailment", "neutral", "contradiction"], name="m")
    assert (nli.positive, nli.negative, nli.infers) == ((0,), (2,), True)
    assert label_roles(["entailment", "not_entailment"], name="m").negative == (1,)
    stars = label_roles(["1 star", "2 stars", "3 stars", "4 stars", "5 stars"], name="m")
    assert (stars.positive, stars.negative, stars.neutral) == ((3, 4), (0, 1), (2,))
    assert label_roles(["LABEL_0"], name="m").positive == (0,), "a reward model has one figure"


def test_labels_that_say_nothing_are_refused_with_the_setting_that_tells() -> None:
    with pytest.raises(ModelRefused) as caught:
        label_roles(["LABEL_0", "LABEL_1"], name="my-prm")
    assert str(caught.value) == (
        "cannot determine which label of my-prm means that the user was served well: it has LABEL_0, LABEL_1; "
        "set judge.classifier.positive to that label, such as --set judge.classifier.positive=LABEL_1"
    )
    told = label_roles(["LABEL_0", "LABEL_1"], positive=["label_1"], name="my-prm")
    assert (told.positive, told.negative) == ((1,), (0,))
    three = label_roles(["a", "b", "c"], positive=["a"], neutral=["b"], name="my-prm")
    assert (three.positive, three.neutral, three.negative) == ((0,), (1,), (2,))
    with pytest.raises(ModelRefused, match="has no label 'label_9'; it has LABEL_0, LABEL_1"):
        label_roles(["LABEL_0", "LABEL_1"], positive=["label_9"], name="my-prm")
