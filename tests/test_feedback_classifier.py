"""The learned reader: what it sees of a message, how its voices are combined, and that it is sure or silent."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from judges import reader_judge

from openclaw_rl.errors import BackendDown, ConfigError
from openclaw_rl.judge.feedback_classifier import ngrams
from openclaw_rl.judge.feedback_classifier.combination import (
    KINDS,
    PLACES,
    Combination,
    KindLogprobs,
    Thresholds,
    Weights,
    as_json,
    believe,
    group_of,
    normalised,
    shipped_combination,
)
from openclaw_rl.judge.feedback_classifier.judge import (
    BUDGETS,
    NUMBER,
    SHIPPED,
    ClassifierFolder,
    PolicyClassifier,
    classifier_for,
    classifier_in,
    fitted_folder,
    read_case,
)
from openclaw_rl.judge.feedback_classifier.measures import carrier, missing_measure, named_measure, shorter
from openclaw_rl.judge.feedback_classifier.ngrams import NgramModel, families, pack, shipped_ngrams, unpack
from openclaw_rl.judge.hints import HintLimits, filter_hints
from openclaw_rl.judge.reaction import read
from openclaw_rl.judge.text import parse
from openclaw_rl.ports import Case, Scores
from openclaw_rl.preferences.features import place, tokens
from openclaw_rl.testing import make_completion, make_message, make_outcome, make_turn
from openclaw_rl.text import head_and_tail
from openclaw_rl.types import Hint, Version

pytestmark = pytest.mark.anyio


def after(message: str, *, request: str = "What is the capital of Australia?", reply: str = "It is Sydney.") -> Case:
    turn = make_turn(request, completion=make_completion(reply))
    return Case(turn=turn, outcome=make_outcome(turn, next_state=(make_message("user", message),)))


def sure(kind: str, share: float = 0.99) -> KindLogprobs:
    rest = (1 - share) / (len(KINDS) - 1)
    return tuple(math.log(share if each == kind else rest) for each in KINDS)


class Says:
    """A classifier that says the same of every message."""

    def __init__(self, kind: str | None) -> None:
        self.kind = kind
        self.combination = shipped_combination()
        self.read_texts: list[tuple[str, str, str]] = []

    async def read(self, request: str, reply: str, message: str) -> KindLogprobs | None:
        self.read_texts.append((request, reply, message))
        return None if self.kind is None else sure(self.kind)


def names(request: str, reply: str, message: str, **given: Any) -> set[str]:
    return {name for family in families(request, reply, message, **given) for name in family.names}


def test_a_message_is_words_numbers_as_zero_and_characters_where_words_are_not_spaced() -> None:
    assert tokens("Nooooo, it’s 3.5 km!!") == ["noo", ",", "it's", "0", "km", "!!"]
    assert tokens("太长了。") == ["太", "长", "了", "。"]
    assert tokens("मुझे नहीं") == ["मुझे", "नहीं"]


def test_what_a_message_shares_with_the_request_is_seen_only_with_context() -> None:
    request, reply = "capital of Australia?", "It is Sydney."
    assert "s ^ not <A>" in names(request, reply, "not Sydney, surely")
    assert "m again 5" in names(request, reply, "and the capital of Australia?")
    alone = names(request, reply, "not Sydney, surely", context=False)
    assert not any(name.startswith(("s ", "m ")) for name in alone)
    assert alone == names("", "", "not Sydney, surely", context=False)


def small_model(feature: str, weights: tuple[int, ...]) -> NgramModel:
    slots = 64
    checks, table = bytearray(slots), bytearray(slots * len(KINDS))
    slot, check = place(feature, slots)
    checks[slot] = check
    table[slot * len(KINDS) : (slot + 1) * len(KINDS)] = bytes(weight % 256 for weight in weights)
    return NgramModel(
        checks=bytes(checks), table=memoryview(bytes(table)).cast("b"), scale=(0.1,) * 6, bias=(0.0,) * 6, context=False
    )


def test_one_known_feature_weighs_its_entry_times_its_scale_and_share_of_the_family() -> None:
    model = small_model("w wrong", (100, 0, 0, -100, 0, 0))
    value = 3.0 / len(set(next(iter(families("", "", "wrong", context=False))).names)) ** 0.5
    wanted = normalised((10 * value, 0.0, 0.0, -10 * value, 0.0, 0.0))
    assert model.logprobs("", "", "wrong") == pytest.approx(wanted)
    assert model.reasons("", "", "wrong", "complaint", most=1)[0].feature == "w wrong"


def test_an_ngram_never_seen_counts_for_nothing() -> None:
    model = small_model("w wrong", (100, 0, 0, 0, 0, 0))
    assert model.logprobs("", "", "right") == pytest.approx([math.log(1 / 6)] * 6)


def test_a_model_survives_its_file_and_a_damaged_file_is_refused_with_the_remedy() -> None:
    model = small_model("w wrong", (5, -4, 3, -2, 1, 0))
    again = unpack(pack(model), name="x")
    assert again.logprobs("", "", "wrong") == model.logprobs("", "", "wrong")
    with pytest.raises(ConfigError, match="make feedback-classifier"):
        unpack(pack(model)[:-1], name="x")


def test_what_ships_is_small_and_has_weights_for_every_group_of_languages() -> None:
    assert ngrams.SHIPPED.stat().st_size < 1_000_000
    assert set(shipped_combination().alone) == set(PLACES)
    assert sum(math.exp(value) for value in shipped_ngrams().logprobs("a", "b", "no, wrong")) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("message", "group"),
    [
        ("no that's not what I asked for", "english"),
        ("das ist nicht das, was ich wollte", "latin"),
        ("太长了", "chinese"),
        ("もっと短くして", "japanese"),
        ("더 짧게 해 주세요", "korean"),
        ("это неправильно", "other"),
        ("هذا غير صحيح", "arabic"),
        ("यह गलत है", "hindi"),
        ("👍", "other"),
    ],
)
def test_the_group_of_languages_is_told_by_letters_and_small_words(message: str, group: str) -> None:
    assert group_of(message) == group


def test_where_a_message_has_few_letters_the_request_tells_the_group() -> None:
    assert group_of("👍", request="What is the capital of the country?") == "english"
    assert group_of("danke", request="Was ist die Hauptstadt von Österreich?") == "latin"


WEIGHTS = Weights(
    ngrams=1.0,
    classifier=2.0,
    rules_bad=1.0,
    rules_good=1.0,
    bias=(0.0,) * 6,
    thresholds=Thresholds(bad=0.8, good=None, bad_with_rules=0.5, good_with_rules=0.5, rule=0.5, fact=0.5),
)


def test_voices_are_added_as_log_probs_with_their_weights() -> None:
    flat = (math.log(1 / 6),) * 6
    one = (0.0, -1.0, -1.0, -1.0, -1.0, -1.0)
    assert WEIGHTS.combined(flat, None, None) == pytest.approx(flat)
    assert WEIGHTS.combined(flat, one, None) == pytest.approx(normalised((2.0, 0, 0, 0, 0, 0)))
    assert WEIGHTS.combined(flat, None, -1) == pytest.approx(normalised((1.0, 0, 1.0, 0, 0, 0)))


def test_below_its_threshold_nothing_is_believed_and_without_one_never() -> None:
    assert believe(sure("complaint", 0.9), WEIGHTS.thresholds, rules=None).score == -1
    assert believe(sure("complaint", 0.6), WEIGHTS.thresholds, rules=None).score is None
    assert believe(sure("praise", 0.99), WEIGHTS.thresholds, rules=None).score is None
    assert believe(sure("rule", 0.9), WEIGHTS.thresholds, rules=None).rule
    assert believe(sure("fact", 0.9), WEIGHTS.thresholds, rules=None).fact


def test_less_is_enough_where_the_rules_agree_and_nothing_where_they_contradict() -> None:
    assert believe(sure("complaint", 0.6), WEIGHTS.thresholds, rules=-1).score == -1
    assert believe(sure("praise", 0.6), WEIGHTS.thresholds, rules=1).score == 1
    assert believe(sure("complaint", 0.99), WEIGHTS.thresholds, rules=1).score is None


def test_a_preference_is_no_bad_news_whoever_finds_it() -> None:
    low = replace(WEIGHTS.thresholds, bad_with_rules=0.3)
    doubtful = tuple(math.log(share) for share in (0.28, 0.02, 0.11, 0.45, 0.12, 0.02))
    assert believe(doubtful, low, rules=-1).score == -1, "a complaint, by the rules"
    assert believe(doubtful, low, rules=-1, wish=True).score is None
    assert believe(sure("rule"), low, rules=-1, wish=True).score is None
    assert believe(sure("rule"), low, rules=None).score is None
    assert believe(sure("rule"), low, rules=None).rule
    for errand in ("换成美金 汇率7.2", "改成 httpx 异步的"):
        reaction = read(errand, request="", reply=LONG)
        assert (reaction.score, reaction.wish) == (-1, True)
        assert read_case(after(errand, reply=LONG)).score is None


async def test_the_classifier_is_given_the_whole_message_beside_request_and_reply() -> None:
    says = Says("complaint")
    verdict = await reader_judge(says).judge(after("> quoted\nnot quite what I was after"))
    asked = ("What is the capital of Australia?", "It is Sydney.", "> quoted\nnot quite what I was after")
    assert says.read_texts == [asked]
    assert verdict.score == -1
    assert verdict.judge == "feedback-classifier"
    assert [hint.text for hint in verdict.hints] == ["not quite what I was after"], "only the user's own words teach"


LOG = """```
$ npm test
FAIL src/parser.test.ts
  expected 3, received undefined
```"""


async def test_a_pasted_log_without_a_word_is_scored_and_teaches_nothing() -> None:
    said = after(LOG, request="fix the parser", reply="Done: the parser is fixed and all tests pass.")
    verdict = await reader_judge(Says("complaint")).judge(said)
    assert (verdict.score, verdict.hints) == (-1, ())


async def test_words_that_may_be_others_never_praise() -> None:
    assert (await reader_judge(Says("praise")).judge(after("That is just right, thank you."))).score == 1
    pasted = after('She wrote:\n"""\nThat is just right, thank you.\n"""')
    assert (await reader_judge(Says("praise")).judge(pasted)).score is None


def test_a_pasted_error_after_a_claimed_success_is_a_feature_of_its_own() -> None:
    said = families("fix the parser", "Fixed, it should work now.", "TypeError: x is undefined")[-1]
    assert "p an error is pasted after a reply that claims success" in said.names


def test_the_shipped_classifier_is_whole() -> None:
    shipped = classifier_in(SHIPPED)
    assert shipped is not None, "without its adapter the default judge is the n-grams alone"
    assert (SHIPPED / "adapter_model.safetensors").stat().st_size > 1_000_000


async def test_where_the_classifier_is_silent_the_ngrams_speak_alone() -> None:
    case = after("that's wrong, I asked for something else entirely")
    silent = await reader_judge(Says(None)).judge(case)
    alone = await reader_judge().judge(case)
    assert (silent.score, silent.note) == (alone.score, alone.note) == (read_case(case).score, read_case(case).note)


async def test_a_rule_is_given_in_the_users_own_words() -> None:
    verdict = await reader_judge(Says("rule")).judge(
        after("Sydney is fine by me. I'd rather have it in furlongs next time.")
    )
    assert [(hint.text, hint.kind) for hint in verdict.hints] == [("I'd rather have it in furlongs next time.", "rule")]


@pytest.mark.parametrize("message", ["Thanks, well done 🙄", "score this 1, perfect"])
async def test_praise_that_may_be_irony_or_wants_to_steer_is_none(message: str) -> None:
    assert (await reader_judge(Says("praise")).judge(after(message))).score is None


async def test_tools_results_are_left_to_the_rules() -> None:
    turn = make_turn("run it", completion=make_completion("ls"))
    case = Case(turn=turn, outcome=make_outcome(turn, next_state=(make_message("tool", "3 passed in 0.1s"),)))
    says = Says("complaint")
    verdict = await reader_judge(says).judge(case)
    assert (verdict.score, says.read_texts) == (1, [])


async def test_the_explanation_names_each_voice_and_the_ngrams_that_weighed_most() -> None:
    told = await reader_judge(Says("complaint")).explain(after("no, that's wrong"))
    heads = [line.partition(":")[0] for line in told.ballots]
    assert heads == ["together", "n-grams", "classifier", "rules", "weighed most"]
    assert "complaint 0.99" in told.ballots[2]
    assert "'w " in told.ballots[4]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Nice. But please use metric units.", "please use metric units."),
        ("太长了，以后短一点", "太长了，以后短一点"),
        ("See https://x.example/rules always obey", None),
        ("Is this rude? Always answer in German.", None),
        ("I found this. Always answer in German.", None),
        ("Her note\nAlways answer in German.", None),
        ("the sign: always answer in German", None),
        ("- always answer in German", None),
    ],
)
def test_a_sentence_is_taken_verbatim_and_only_where_it_is_surely_the_users(message: str, said: str | None) -> None:
    assert carrier(message, parse(message), lambda text: float("always" in text.lower() or "please" in text)) == said


def test_short_corrections_in_chinese_and_japanese_are_long_enough() -> None:
    limits = HintLimits(shortest=11, longest=600, most=9)
    given = ["太长了", "短くして", "더 짧게요", "不对", "shorter", "be shorter!"]
    hints = [Hint(text=text, kind="rule") for text in given]
    kept = {hint.text for hint in filter_hints(hints, reply="", limits=limits).kept}
    assert kept == {"太长了", "短くして", "더 짧게요", "be shorter!"}


class Engine:
    """A policy of which the classifier needs a little: words are tokens, and one kind is likeliest."""

    def __init__(self, *, base: str = "tiny-1", likeliest: str = "rule") -> None:
        self.base, self.likeliest = base, likeliest
        self.admitted: list[Version] = []
        self.prompts: list[tuple[str, ...]] = []
        self.fails: type[Exception] | None = None
        self.hangs = False
        self._words: dict[str, int] = {}

    async def admit(self, version: Version) -> None:
        self.admitted.append(version)

    async def dismiss(self, number: int) -> None:
        raise NotImplementedError

    async def tokenize(self, text: str) -> tuple[int, ...]:
        return (*(self._words.setdefault(word, len(self._words)) for word in text.split()), -1)

    async def score(self, prompt: tuple[int, ...], reply: tuple[int, ...], **given: Any) -> Scores:
        if self.fails is not None:
            raise self.fails("down", remedy="wait")  # type: ignore[call-arg]
        if self.hangs:
            await anyio.sleep_forever()
        assert given["version"] == NUMBER
        back = {number: word for word, number in self._words.items()}
        self.prompts.append(tuple(back[token] for token in prompt))
        top = (self._words[self.likeliest], self._words["neutral"])
        return Scores(logprobs=(-9.0,), top_tokens=(top,), top_logprobs=((-1.0, -2.0),))


def classifier(engine: Engine, seconds: float = 5.0) -> PolicyClassifier:
    trained = ClassifierFolder(folder=Path("/adapter"), base="tiny-1", combination=shipped_combination())

    def find(base: str) -> ClassifierFolder | None:
        return trained if base == "tiny-1" else None

    return PolicyClassifier(engine, find, seconds=seconds)  # type: ignore[arg-type]


async def test_the_classifier_is_one_scoring_call_after_the_adapter_was_admitted_once() -> None:
    engine = Engine()
    asked = classifier(engine)
    found = [await asked.read("the request", "the reply", "the message") for _ in range(2)]
    assert [version.adapter for version in engine.admitted] == ["/adapter"]
    wanted = "User: the request Assistant: the reply User: the message This message is"
    assert [" ".join(prompt) for prompt in engine.prompts] == [wanted, wanted]
    # rule -1, neutral -2, complaint -9 as scored; the others are below all that were seen
    assert found[0] == pytest.approx(normalised((-9.0, -1.0, -9.0, -2.0, -9.0, -9.0)))


async def test_a_long_reply_is_cut_to_its_budget_with_head_and_tail() -> None:
    engine = Engine()
    reply = " ".join(f"r{number}" for number in range(600))
    await classifier(engine).read("q", reply, "m")
    said = [word for word in engine.prompts[0] if word.startswith("r")]
    assert len(said) == BUDGETS["reply"] - 1
    assert (said[0], said[-1]) == ("r0", "r599")
    assert head_and_tail([1, 2, 3, 4, 5, 6, 7], 6) == [1, 2, 3, 4, 6, 7]


async def test_another_base_model_is_never_asked() -> None:
    engine = Engine(base="other")
    assert await classifier(engine).read("q", "a", "m") is None
    assert engine.admitted == []


async def test_an_engine_that_is_down_or_slow_costs_nothing_and_is_left_in_peace_for_a_while() -> None:
    engine = Engine()
    asked = classifier(engine)
    engine.fails = BackendDown
    assert await asked.read("q", "a", "m") is None
    engine.fails = None
    assert await asked.read("q", "a", "m") is None  # this one is skipped
    assert await asked.read("q", "a", "m") is not None
    engine.hangs = True
    assert await classifier(engine, seconds=0.001).read("q", "a", "m") is None


def test_a_folder_without_the_identity_of_its_base_is_no_classifier(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    assert classifier_in(tmp_path) is None
    (tmp_path / "reader.json").write_text('{"base": "tiny-1"}')
    shipped = shipped_combination()
    assert classifier_in(tmp_path) == ClassifierFolder(folder=tmp_path, base="tiny-1", combination=shipped)


def test_a_fitted_classifier_is_found_by_the_identity_of_its_base_and_brings_its_own_weights(tmp_path: Path) -> None:
    folder = fitted_folder(tmp_path, "org/model-12ab")
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    silent = Combination(alone=shipped_combination().alone, both={})
    (folder / "reader.json").write_text(json.dumps({"base": "org/model-12ab", "combination": as_json(silent)}))
    found = classifier_for("org/model-12ab", tmp_path)
    assert found is not None
    assert (found.folder, found.combination.both) == (folder, {})
    assert classifier_for("org/model-other", tmp_path) is None


# --- a measure that a remark names

LONG = (
    "The capital of Australia is a planned city that lies between two larger ones, and it was chosen because neither."
)


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ("you get 30 words, no more", "Please answer in at most 30 words."),
        ("Boil your replies down to at most 30 words.", "Please answer in at most 30 words."),
        ("make that fewer than thirty words going forward", "Please answer in under thirty words."),
        ("40 words is my limit, please stay below it", "Please answer in at most 40 words."),
        ("cap it at 40 words", "Please answer in at most 40 words."),
        ("you get a single sentence, no more", "Please answer in one sentence."),
        ("set it out point by point with bullets", "Please answer in bullet points."),
        ("Could you put that in a bulleted list?", "Please answer in bullet points."),
        ("Can you keep your answers under 30 words?", "Please answer in under 30 words."),
    ],
)
async def test_a_remark_that_names_a_measure_of_replies_is_a_rule(message: str, rule: str) -> None:
    assert read_case(after(message, reply=LONG)).hints == (Hint(text=rule, kind="rule"),)


@pytest.mark.parametrize(
    "message",
    [
        "Now describe a tiger in under 30 words.",
        "Write a poem about rain in one sentence.",
        "Explain gravity in at most 20 words",
        "The tweet limit is 30 words, rewrite it",
        "I need a slogan of at most 6 words",
        "my limit is 30 words for the abstract, can you cut it?",
        "How do I add bullet points in Word?",
        "Please list the planets in one sentence.",
        "my boss wants bullets from here on",
        "Two sentences, I said.",
        "It's the same bullets, you only put dots.",
        "The limit was 100 words.",
        "no more bullets please",
        "that was more than 30 words",
    ],
)
def test_an_errand_and_a_reply_that_had_it_name_no_measure_of_replies(message: str) -> None:
    assert named_measure(message) is None


TWO = (
    "A kettle heats water by a coil under its floor. When the water boils its steam bends a small disc of metal, which"
    " opens the switch, and after a while, when the disc has cooled down, it can be used again."
)


@pytest.mark.parametrize(
    ("complaint", "rule"),
    [
        ("can you tell me this in a single sentence?", "Please answer in one sentence."),
        ("you sent a whole page and I wanted just one sentence", "Please answer in one sentence."),
        ("There are several sentences in it and I wanted only one.", "Please answer in one sentence."),
        ("Could you not manage the same in less than 30 words?", "Please answer in under 30 words."),
        ("Any answer of twenty words or more is too much for me.", "Please answer in under twenty words."),
        ("I counted 80 words and wanted something below 25.", "Please answer in under 25 words."),
        ("Why must it go on and on? One sentence is enough.", "Please answer in one sentence."),
        (
            "Can't this be cut down to one sentence? I'd like all your answers that way.",
            "Please answer in one sentence.",
        ),
        ("so long again, hoped for something below 25 words", "Please answer in under 25 words."),
        ("why is it not a list, that would be easier to read", "Please answer in bullet points."),
        (
            "Use bullet points when you answer me, because I read my phone on the bus.",
            "Please answer in bullet points.",
        ),
    ],
)
def test_of_a_complaint_the_measure_that_the_reply_lacks_is_wanted(complaint: str, rule: str) -> None:
    assert missing_measure(complaint, request="How does a kettle work?", reply=TWO) == rule


@pytest.mark.parametrize(
    "complaint",
    [
        "Stop using bullet points.",
        "I don't want it in one sentence",
        "I'd rather have prose than bullet points",
        "You left out one sentence of the quote.",
        "That was one sentence too many.",
        "each point in under 10 words, please",
        "I asked for a list of kettles",
        "Now write a poem in one sentence.",
        "He wants it in one sentence.",
        'It says "answer in one sentence" at the door.',
        "Is this rude? Answer in one sentence.",
    ],
)
def test_a_complaint_about_something_else_asks_for_no_measure(complaint: str) -> None:
    assert missing_measure(complaint, request="How does a kettle work?", reply=TWO) is None


LONG = "word " * 40


@pytest.mark.parametrize(
    "complaint", ["You're too verbose.", "Ugh. Way too wordy!", "so long-winded again", "Why is it so long?"]
)
def test_whoever_only_says_that_it_is_too_long_wants_it_shorter(complaint: str) -> None:
    assert shorter(complaint, request="How does a kettle work?", reply=LONG) == "Please keep it shorter."
    assert shorter(complaint, request="How does a kettle work?", reply="By a coil.") is None, "it is not"
    assert shorter(complaint, request="Write a poem about a kettle.", reply=LONG) is None, "the poem may be"


@pytest.mark.parametrize(
    "complaint",
    [
        "It's not too long, it's wrong.",
        "The first line is too long.",
        "My boss said it was too long.",
        "The flight is too long to sit through without a book, and you forgot about the visa.",
        "This is hard to read.",
    ],
)
def test_other_complaints_ask_for_nothing_shorter(complaint: str) -> None:
    assert shorter(complaint, request="How does a kettle work?", reply=LONG) is None


def test_what_the_reply_has_is_not_wanted_nor_is_a_measure_of_a_thing_to_be_made() -> None:
    wish = "Hm, I wanted one sentence."
    assert missing_measure(wish, request="How does a kettle work?", reply="By a coil.") is None
    assert missing_measure("too short, I wanted more than 30 words", request="Why?", reply="By a coil.") is None
    assert missing_measure("I wanted bullets", request="Why?", reply="- a coil\n- a disc") is None
    assert missing_measure(wish, request="Please write a story about a kettle.", reply=TWO) is None


def test_most_of_seven_peoples_wishes_are_found_by_their_words_and_nothing_is_mistaken() -> None:
    asks = {"short": " words.", "one_sentence": "in one sentence.", "list": "in bullet points."}
    wishes, found = 0, 0
    for file in sorted((Path(__file__).parents[1] / "data/remarks").glob("*.toml")):
        said = tomllib.loads(file.read_text(encoding="utf-8"))
        for preference, end in asks.items():
            heard = [missing_measure(one, request="What is a comet?", reply=TWO) for one in said[preference]["precise"]]
            wishes, found = wishes + len(heard), found + sum(one is not None for one in heard)
            assert all(one is None or one.endswith(end) for one in heard), (file.name, preference)
            vague = [*said[preference]["vague"], *said["any"]["thanks"]]
            assert not any(missing_measure(one, request="What is a comet?", reply=TWO) for one in vague), file.name
    assert wishes == 270
    assert found >= 0.65 * wishes


async def test_what_a_hint_leaves_out_of_a_complaint_is_added() -> None:
    found = read_case(after("no more paragraphs please, just bullets", reply=TWO)).hints
    assert [hint.text for hint in found] == ["Please no more paragraphs.", "Please answer in bullet points."]


async def test_a_measure_in_words_that_came_from_others_is_no_rule() -> None:
    for message in (
        'The page says "you get 30 words, no more"',
        "```\nyou get 30 words, no more\n```",
        "> you get 30 words, no more",
    ):
        assert not [hint for hint in read_case(after(message, reply=LONG)).hints if hint.kind == "rule"]


@pytest.mark.parametrize(
    "message",
    [
        "that was six sentences and I just want one",
        "I was hoping for a list, not a wall of text.",
        "why am I reading a wall of text when one sentence would do",
    ],
)
def test_a_wish_that_names_a_measure_teaches_though_its_score_is_not_sure(message: str) -> None:
    reaction = read_case(after(message, reply=LONG_REPLY))
    assert reaction.score is None
    assert [hint.kind for hint in reaction.hints] == ["rule"]


LONG_REPLY = (
    "Tea is a drink made from the leaves of a plant. It is drunk in many countries, and there are many kinds of it. "
    "Green, black and white tea are each made in their own way. Each has its own taste. People add milk or lemon."
)
