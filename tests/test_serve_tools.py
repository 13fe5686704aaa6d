"""Tool calls and reasoning, read from what a model writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.formats.parts import CallArgs, CallBroken, CallEnd, CallStart, Part, Text, Thought
from openclaw_rl.formats.reply_parser import ReplyParser, split
from openclaw_rl.types import Message, Prompt, Tool

PROMPT = Prompt(messages=(Message(role="user", content="hi"),), tools=(Tool(name="f"), Tool(name="g")))

Told = tuple[str, str | None, tuple[tuple[str, str], ...], tuple[str, ...]]

WRITTEN: dict[str, tuple[str, str, Told]] = {
    "hermes, one call": (
        "hermes",
        'Let me look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": [true, null, "x}"]}}\n</tool_call>',
        ("Let me look.", None, (("f", '{"a": 1, "b": [true, null, "x}"]}'),), ()),
    ),
    "hermes, two calls after a thought": (
        "hermes",
        '<think>\nfirst f\n</think>\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>{"arguments": {"q": "\\u00e9"}, "name": "g"}</tool_call>\n',
        ("", "first f", (("f", "{}"), ("g", '{"q": "\\u00e9"}')), ()),
    ),
    "hermes, arguments left out, as text, and null": (
        "hermes",
        '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "f", "arguments": "{\\"a\\": 2}"}</tool_call>'
        '<tool_call>{"name": "g", "arguments": null}</tool_call>',
        ("", None, (("f", "{}"), ("f", '{"a": 2}'), ("g", "{}")), ()),
    ),
    "hermes, a bare line break in a string is escaped": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"t": "a\nb"}}</tool_call>',
        ("", None, (("f", '{"t": "a\\nb"}'),), ()),
    ),
    "hermes, a brace too many and no closing marker": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}}}',
        ("", None, (("f", '{"a": 1}'),), ()),
    ),
    "hermes, a broken call comes back as text": (
        "hermes",
        'So: <tool_call>{"name": "f", "arguments": {"a": "b" "c"}}</tool_call> done',
        (
            'So: <tool_call>{"name": "f", "arguments": {"a": "b" "c"}}</tool_call> done',
            None,
            (),
            ("malformed_tool_call",),
        ),
    ),
    "hermes, a call without a name is text, the next is a call": (
        "hermes",
        '<tool_call>{"arguments": {}}</tool_call><tool_call>{"name": "g"}</tool_call>',
        ('<tool_call>{"arguments": {}}</tool_call>', None, (("g", "{}"),), ("malformed_tool_call",)),
    ),
    "hermes, an unfinished call is text": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1',
        ('<tool_call>{"name": "f", "arguments": {"a": 1', None, (), ("malformed_tool_call",)),
    ),
    "hermes, markers that are none": ("hermes", "a < b <tool <tool_cal \n", ("a < b <tool <tool_cal \n", None, (), ())),
    "llama, one call": (
        "llama",
        '{"name": "f", "parameters": {"a": -1.5e3}}',
        ("", None, (("f", '{"a": -1.5e3}'),), ()),
    ),
    "llama, tagged, two calls": (
        "llama",
        '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "g", "parameters": {"x": ""}}',
        ("", None, (("f", "{}"), ("g", '{"x": ""}')), ()),
    ),
    "llama, an answer in JSON is an answer": ("llama", '{"city": "Bern"}', ('{"city": "Bern"}', None, (), ())),
    "llama, a person with a name is no call": (
        "llama",
        '{"name": "Bo", "type": 3} ok',
        ('{"name": "Bo", "type": 3} ok', None, (), ()),
    ),
    "llama, plain text": ("llama", " Hello {you}", (" Hello {you}", None, (), ())),
    "llama, a broken call": (
        "llama",
        '{"name": "f", "parameters": {"a": nul}}',
        ('{"name": "f", "parameters": {"a": nul}}', None, (), ("malformed_tool_call",)),
    ),
    "pythonic, two calls": (
        "pythonic",
        "[f(a=1, b='x, )'), g(c=[1, {'k': None}], d=true)]",
        ("", None, (("f", '{"a": 1, "b": "x, )"}'), ("g", '{"c": [1, {"k": null}], "d": true}')), ()),
    ),
    "pythonic, no arguments, text after": ("pythonic", "[f()] \n bye", ("bye", None, (("f", "{}"),), ())),
    "pythonic, a link is no call": ("pythonic", "[link](http://x)", ("[link](http://x)", None, (), ())),
    "pythonic, not a literal": (
        "pythonic",
        "[f(a=open('x'))]",
        ("[f(a=open('x'))]", None, (), ("malformed_tool_call",)),
    ),
    "pythonic, cut inside": ("pythonic", "[f(a=1, b='", ("[f(a=1, b='", None, (), ("malformed_tool_call",))),
    "harmony, a thought and an answer": (
        "harmony",
        "<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>",
        ("It is 4.", "Two and two.", (), ()),
    ),
    "harmony, a preamble and two calls": (
        "harmony",
        "<|channel|>analysis<|message|>Look it up.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look in two places.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|end|>'
        "<|start|>assistant to=functions.g<|channel|>commentary json<|message|><|call|>",
        ("I look in two places.", "Look it up.", (("f", '{"a": 1}'), ("g", "{}")), ()),
    ),
    "harmony, the recipient first, and no end": (
        "harmony",
        ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"q": "<|en"}',
        ("", None, (("f", '{"q": "<|en"}'),), ()),
    ),
    "harmony, an end that is missing, and thoughts twice": (
        "harmony",
        "<|channel|>analysis<|message|>One.<|channel|>analysis<|message|>Two.<|start|>assistant<|channel|>final"
        "<|message|>Yes <|maybe|>.",
        ("Yes <|maybe|>.", "One.\n\nTwo.", (), ()),
    ),
    "harmony, arguments that are no object come back as text": (
        "harmony",
        "<|channel|>commentary to=functions.f<|message|>[1, 2<|call|>",
        ("<|channel|>commentary to=functions.f<|message|>[1, 2", None, (), ("malformed_tool_call",)),
    ),
    "harmony, a reply without channels is text": ("harmony", "Hello <b>", ("Hello <b>", None, (), ())),
    "no format, all is text": ("none", "<tool_call>{}</tool_call>", ("<tool_call>{}</tool_call>", None, (), ())),
    "a thought without an end": ("hermes", "<think>hm, ", ("", "hm, ", (), ())),
    "a tag that is none": ("hermes", "<thin air>", ("<thin air>", None, (), ())),
}


def told(message: Message, flaws: tuple[str, ...]) -> Told:
    calls = tuple((call.name, call.arguments) for call in message.tool_calls)
    return message.content, message.reasoning, calls, flaws


def read_in(pieces: list[str], tool_format: str) -> tuple[Told, list[Part]]:
    reading = ReplyParser(PROMPT, tool_format=tool_format, reasoning="tags")
    parts = [part for piece in pieces for part in reading.feed(piece)]
    parts += reading.end(cut=False)
    return told(reading.message(), reading.flaws), parts


@pytest.mark.parametrize("name", WRITTEN)
def test_a_reply_is_read_into_what_it_says(name: str) -> None:
    tool_format, text, expected = WRITTEN[name]
    assert told(*split(text, PROMPT, tool_format=tool_format)) == expected


@pytest.mark.parametrize("name", WRITTEN)
def test_where_the_text_is_cut_changes_nothing(name: str) -> None:
    tool_format, text, expected = WRITTEN[name]
    assert read_in(list(text), tool_format)[0] == expected
    for at in range(1, len(text)):
        assert read_in([text[:at], text[at:]], tool_format)[0] == expected, (text[:at], text[at:])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "<think>",
                "</think>",
                "<tool_call>",
                "</tool_call>",
                '{"name": "f", "arguments": {"a": 1}}',
                "[f(a=1)]",
                "<|channel|>analysis<|message|>",
                "<|channel|>commentary to=functions.f<|message|>",
                "<|end|>",
                "<|start|>assistant",
                "hi",
                " ",
                "\n",
                '"',
                "}",
                "<",
                ";",
            ]
        ),
        max_size=12,
    ),
    st.sampled_from(["hermes", "llama", "pythonic", "harmony"]),
)
def test_whatever_is_written_one_character_at_a_time_reads_the_same(bits: list[str], tool_format: str) -> None:
    text = "".join(bits)
    assert read_in(list(text), tool_format)[0] == read_in([text], tool_format)[0]


def test_arguments_are_passed_on_before_they_are_whole() -> None:
    reading = ReplyParser(PROMPT, tool_format="hermes", reasoning="tags")
    first = reading.feed('<tool_call>{"name": "f", "arguments": {"a": "lo')
    assert [type(part) for part in first] == [CallStart, CallArgs]
    assert first[1] == CallArgs(0, '{"a": "lo')
    assert reading.feed('ng"}') == [CallArgs(0, 'ng"}')]
    assert reading.feed("}") == [CallEnd(0)]


def test_a_call_that_breaks_after_it_began_is_taken_back_and_said_as_text() -> None:
    reading = ReplyParser(PROMPT, tool_format="hermes", reasoning="tags")
    reading.feed('<tool_call>{"name": "f", "arguments": {"a": 1')
    assert reading.feed(" x") == [
        CallArgs(0, " "),
        CallBroken(0),
        Text('<tool_call>{"name": "f", "arguments": {"a": 1 x'),
    ]


def test_a_reply_cut_by_its_limit_is_not_blamed_for_its_half_call() -> None:
    reading = ReplyParser(PROMPT, tool_format="hermes", reasoning="tags")
    reading.feed('<tool_call>{"name": "f"')
    reading.end(cut=True)
    assert reading.flaws == ()


def test_harmony_passes_thoughts_and_arguments_on_as_they_come_and_forgives_a_limit() -> None:
    reading = ReplyParser(PROMPT, tool_format="harmony", reasoning="tags")
    assert reading.feed("<|channel|>analysis<|message|>so") == [Thought("so")]
    assert reading.feed(" it<|en") == [Thought(" it")]
    reading.feed("d|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|mess")
    start, first = reading.feed('age|>{"a": "lo')
    assert isinstance(start, CallStart)
    assert (start.name, first) == ("f", CallArgs(0, '{"a": "lo'))
    assert [type(part) for part in reading.end(cut=True)] == [CallBroken, Text]
    assert reading.flaws == ()


def test_harmony_without_tools_has_channels_but_no_calls_and_may_be_left_as_it_is() -> None:
    bare = Prompt(messages=PROMPT.messages)
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}"
    message, flaws = split(text, bare, tool_format="harmony")
    assert told(message, flaws) == ("{}", "Hm.", (), ())
    assert split(text, bare, tool_format="harmony", reasoning="off")[0].content == text


def test_without_tools_nothing_is_a_call() -> None:
    bare = Prompt(messages=PROMPT.messages)
    text = '<tool_call>{"name": "f"}</tool_call>'
    assert split(text, bare, tool_format="hermes")[0].content == text


def test_a_template_that_opens_the_thought_is_read_from_inside_it() -> None:
    reading = ReplyParser(PROMPT, tool_format="hermes", reasoning="open")
    assert reading.feed("so</thi") == [Thought("so")]
    assert reading.feed("nk>\nyes") == [Text("yes")]


def test_a_call_id_is_letters_and_digits_only_and_survives_clients_that_strip_the_rest() -> None:
    message, _ = split('<tool_call>{"name": "f"}</tool_call>', PROMPT, tool_format="hermes")
    assert message.tool_calls[0].id.isalnum()
    assert len(message.tool_calls[0].id) <= 40


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text(max_size=5), json_values, max_size=3))
def test_any_json_arguments_come_through_as_they_were_written(arguments: dict[str, object]) -> None:
    written = json.dumps(arguments, ensure_ascii=False)
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    message, flaws = split(text, PROMPT, tool_format="hermes")
    assert flaws == ()
    assert json.loads(message.tool_calls[0].arguments) == arguments
