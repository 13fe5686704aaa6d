"""What is refused of the settings, and how it is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from configs import UNHURRIED, refused, written
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.config import SETTINGS, load
from openclaw_rl.config.names import SECTIONS
from openclaw_rl.config.renamed import FIXED, MOVED, refusal

pytestmark = pytest.mark.usefixtures("elsewhere")


# Refusals

WORD = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12).filter(
    lambda word: "__" not in word and word.strip("_") == word
)


@pytest.mark.slow
@UNHURRIED
@given(section=st.sampled_from([*SECTIONS, ""]), word=WORD)
def test_any_unknown_key_is_refused_with_a_known_name(
    section: str, word: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = f"{section}.{word}" if section else word
    if path in SETTINGS or path in SECTIONS or refusal(path):
        return
    file = written(tmp_path_factory.getbasetemp(), f"{path} = 1")
    named = f"OPENCLAW_RL__{path.upper().replace('.', '__')}"
    said = refused(file=file, environ={named: "1"}, sets=[f"{path}=1"]).splitlines()
    known = "|".join(re.escape(each) for each in (*SECTIONS, *SETTINGS))
    for line, source in zip(said, (f"file {file}", f"environment {named}", "--set"), strict=True):
        assert re.fullmatch(
            rf"'{path}' is not known; the nearest known name is '({known})' \({re.escape(source)}\)", line
        )


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("serv.port", "serve.port"),
        ("port", "serve.port"),
        ("train.rank", "train.lora.rank"),
        ("train.optm.lr", "train.optim.lr"),
        ("jugde", "judge"),
        ("train.batchsize", "train.batch_size"),
    ],
)
def test_the_nearest_name_is_the_one_that_was_meant(said: str, meant: str) -> None:
    assert f"the nearest known name is {meant!r}" in refused(sets=[f"{said}=1"])


MOVED_SECTIONS = ("watch", "train.rehearse", "judge.reader")
"""a file's section of these names is refused as a whole"""


@pytest.mark.parametrize("old", [*MOVED, *FIXED])
def test_a_key_of_an_earlier_release_is_refused_with_its_present_name(old: str, tmp_path: Path) -> None:
    now = MOVED.get(old, "")
    assert old not in SETTINGS
    assert now in SETTINGS or now in SECTIONS or old in FIXED
    wanted = (
        f"{old} is now {now} (" if now else f"{old} is no setting any more, it is fixed: {FIXED[old]}; take it out ("
    )
    named = f"OPENCLAW_RL__{old.upper().replace('.', '__')}"
    file = written(tmp_path, f'{old} = "1"')
    for line in refused(file=file, environ={named: "1"}, sets=[f"{old}=1"]).splitlines():
        assert line.startswith((wanted, *(f"{name} is now {MOVED[name]} (" for name in MOVED_SECTIONS)))


def test_a_learning_rate_of_an_earlier_release_is_refused_in_these_words() -> None:
    assert refused(sets=["train.lr=1"]) == "train.lr is now train.optim.lr (--set)"
    assert refused(sets=["train.loss=mine.py:loss"]) == "train.loss is now train.loss.custom (--set)"


LIMITED = [
    (path, name, getattr(rule, name))
    for path, setting in SETTINGS.items()
    for rule in setting.field.metadata
    for name in ("ge", "gt", "le", "lt")
    if hasattr(rule, name)
]


@UNHURRIED
@given(limit=st.sampled_from(LIMITED), far=st.integers(1, 1000))
def test_a_value_out_of_range_is_refused_with_field_value_range_and_source(
    limit: tuple[str, str, float], far: int
) -> None:
    path, rule, bound = limit
    value = bound - far if rule in ("ge", "gt") else bound + far
    said = refused(sets=[f"{path}={value}"])
    assert said.startswith(f"{path} = {value} (--set): must be a ")
    assert str(bound) in said.partition("must be")[2]


def test_the_bound_itself_is_taken_or_refused_as_declared() -> None:
    assert load(environ={}, sets=["serve.port=65535", "judge.llm.threshold=1"]).config.judge.llm.threshold == 1.0
    assert (
        refused(flags={"--port": 65536}) == "serve.port = 65536 (flag --port): must be a whole number from 0 to 65535"
    )
    assert (
        refused(sets=["judge.llm.threshold=0"])
        == "judge.llm.threshold = 0 (--set): must be a number above 0 and of at most 1"
    )


@pytest.mark.parametrize(
    ("path", "text", "what"),
    [
        ("serve.port", "abc", "a whole number from 0 to 65535"),
        ("serve.port", "true", "a whole number from 0 to 65535"),
        ("serve.port", "1.5", "a whole number from 0 to 65535"),
        ("train.optim.lr", "nan", "a number above 0 and of at most 1"),
        ("run.record", "maybe", "true or false"),
        (
            "train.method",
            "ppo",
            "one of topk, binary, opd, distill, combine, gspo, cispo, dr_grpo, dapo, reinforce++, rloo",
        ),
        ("eval.tasks", "coding,chess", "a list of any of conversation, coding, tool-use"),
        ("policy.device", "gpu", "one of auto, cpu, mps, cuda or cuda:N"),
        ("judge.llm.base_url", "localhost:8000", "an http:// or https:// address"),
        ("gpus.train", "0,0", "a count of at least 0, or a list of different device numbers"),
        ("gpus.train", "-1", "a count of at least 0, or a list of different device numbers"),
        ("serve.host", "", "text of at least 1 character"),
        ("policy.options", "3", "a table"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_with_what_was_expected(path: str, text: str, what: str) -> None:
    named = f"OPENCLAW_RL__{path.upper().replace('.', '__')}"
    said = refused(environ={named: text})
    assert said.startswith(f"{path} = ")
    assert f"(environment {named}): must be {what}" in said


def test_a_wrong_value_is_refused_even_when_a_later_rank_replaces_it() -> None:
    assert "(environment OPENCLAW_PORT)" in refused(environ={"OPENCLAW_PORT": "abc"}, flags={"--port": 1})


def test_all_that_is_wrong_is_said_at_once_one_line_each(tmp_path: Path) -> None:
    file = written(tmp_path, "serve = 3\n[train.loss]\nk = 0\n[judge]\nvots = 1")
    said = refused(
        preset="gpu-demo",
        file=file,
        environ={"MAX_STEPS": "many"},
        sets=["nonsense", "train.optim.lr=0"],
        flags={"--prt": 1},
    )
    assert len(said.splitlines()) == 8
    for part in (
        "'gpu-demo'",
        'env.max_steps = "many"',
        "serve (file",
        "train.loss.k = 0",
        "'judge.vots'",
        "--set 'nonsense'",
        "train.optim.lr = 0",
        "'--prt'",
    ):
        assert part in said


def test_a_broken_file_is_named_with_the_line(tmp_path: Path) -> None:
    file = written(tmp_path, "[serve]\nport = 1\nhost = oops\n")
    assert re.fullmatch(rf"file {re.escape(str(file))}: is not valid TOML: .*line 3.*", refused(file=file))


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    assert "there is no such file; write one with: openclaw-rl init" in refused(file=tmp_path / "none.toml")
    assert "cannot be read: Is a directory" in refused(file=tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"a = \xff")
    assert "is not UTF-8 text (at byte 4)" in refused(file=tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["judge.llm.quorum=4"], "judge.llm.quorum = 4 (--set): must be at most judge.llm.votes, which is 3"),
        (["judge.hint_max=5"], "judge.hint_min = 11 (default): must be at most judge.hint_max, which is 5"),
        (
            ["train.loss.w_rl=0", "train.loss.w_opd=0"],
            "train.loss.w_rl = 0.0 (--set): must be above 0 when train.loss.w_opd is 0: nothing would be learned",
        ),
        (
            ["gpus.total=4", "gpus.train=4", "gpus.judge=1"],
            "gpus.total = 4 (--set): must be at least 5, the sum of the GPUs given out",
        ),
        (
            ["gpus.total=2", "gpus.train=[1,2]"],
            "gpus.train = [1, 2] (--set): must name devices below gpus.total, which is 2",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(sets: list[str], said: str) -> None:
    assert refused(sets=sets) == said


def test_two_zero_weights_are_fine_for_a_method_that_reads_neither() -> None:
    assert (
        load(environ={}, sets=["train.loss.w_rl=0", "train.loss.w_opd=0", "train.method=binary"]).config.train.loss.w_rl
        == 0
    )


def test_all_gpus_may_be_given_out_and_one_may_be_shared_by_name() -> None:
    sets = ["gpus.total=4", "gpus.train=3", "gpus.rollout=1", "gpus.judge=[3]", "gpus.teacher=[3]"]
    assert load(environ={}, sets=sets).config.gpus.teacher == (3,)
