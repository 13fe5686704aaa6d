"""Coding tasks: small functions to write, each with checks that a program runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.types import Message, Prompt, Tool, ToolCall

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingTask:
    """One function to write: its signature, its purpose, and expressions that are true for a correct one."""

    signature: str
    does: str
    checks: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.signature.partition("(")[0]

    @property
    def prompt(self) -> str:
        return f"Write a Python function {self.signature} that {self.does}. Reply with the code only."


CODING_TASKS: tuple[CodingTask, ...] = tuple(
    CodingTask(signature=signature, does=does, checks=checks)
    for signature, does, checks in (
        ("add(a, b)", "returns the sum of a and b", ("add(2, 3) == 5", "add(-1, 1) == 0")),
        ("square(x)", "returns x times x", ("square(4) == 16", "square(-3) == 9")),
        ("is_even(n)", "returns True if n is even and False otherwise", ("is_even(4) is True", "is_even(7) is False")),
        (
            "largest(numbers)",
            "returns the largest number of a list",
            ("largest([3, 9, 2]) == 9", "largest([-5]) == -5"),
        ),
        ("total(numbers)", "returns the sum of a list of numbers", ("total([1, 2, 3]) == 6", "total([]) == 0")),
        ("reverse(text)", "returns the text reversed", ("reverse('abc') == 'cba'", "reverse('') == ''")),
        ("shout(text)", "returns the text in capital letters", ("shout('hi') == 'HI'",)),
        ("length(items)", "returns how many items a list has", ("length([1, 2]) == 2", "length([]) == 0")),
        (
            "count_vowels(text)",
            "returns how many of the letters a, e, i, o, u are in a lower-case text",
            ("count_vowels('banana') == 3", "count_vowels('rhythm') == 0"),
        ),
        (
            "is_palindrome(text)",
            "returns True if the text reads the same backwards and False otherwise",
            ("is_palindrome('level') is True", "is_palindrome('tea') is False"),
        ),
        ("factorial(n)", "returns the factorial of n", ("factorial(0) == 1", "factorial(5) == 120")),
        (
            "fibonacci(n)",
            "returns the n-th Fibonacci number, where fibonacci(0) is 0 and fibonacci(1) is 1",
            ("fibonacci(0) == 0", "fibonacci(1) == 1", "fibonacci(10) == 55"),
        ),
        (
            "is_prime(n)",
            "returns True if n is a prime number and False otherwise",
            ("is_prime(2) is True", "is_prime(1) is False", "is_prime(21) is False", "is_prime(23) is True"),
        ),
        ("last(items)", "returns the last item of a list", ("last([1, 2, 3]) == 3", "last(['a']) == 'a'")),
        (
            "unique(items)",
            "returns a list without duplicates, in the order of first appearance",
            ("unique([1, 2, 1, 3, 2]) == [1, 2, 3]", "unique([]) == []"),
        ),
        (
            "celsius(fahrenheit)",
            "converts degrees Fahrenheit to degrees Celsius",
            ("abs(celsius(212) - 100) < 1e-6", "abs(celsius(32)) < 1e-6"),
        ),
        (
            "word_count(text)",
            "returns a dictionary from each word of a text, split at spaces, to how often it occurs",
            ("word_count('a b a') == {'a': 2, 'b': 1}",),
        ),
        (
            "sorted_words(text)",
            "returns the words of a text in alphabetical order as a list",
            ("sorted_words('pear apple fig') == ['apple', 'fig', 'pear']",),
        ),
        ("mean(numbers)", "returns the mean of a list of numbers", ("mean([1, 2, 3]) == 2", "mean([4]) == 4")),
        (
            "fizzbuzz(n)",
            "returns 'Fizz' if n is divisible by 3, 'Buzz' if by 5, 'FizzBuzz' if by both, and otherwise n as text",
            ("fizzbuzz(3) == 'Fizz'", "fizzbuzz(10) == 'Buzz'", "fizzbuzz(15) == 'FizzBuzz'", "fizzbuzz(7) == '7'"),
        ),
    )
)


def code_of(reply: str) -> str:
    """Return a reply's code: its first fenced block, else the entire reply."""
    block = _BLOCK.search(reply)
    return block[1] if block else reply


def program(task: CodingTask, reply: str) -> str:
    """Return the reply's code followed by the checks; it exits with code 0 only if every check is true."""
    checks = "\n".join(f"assert {check}, {check!r}" for check in task.checks)
    return f"{code_of(reply)}\n\n{checks}\nprint('passed')\n"


# Tool-use tasks: each has a request, the available tools, and the call that answers it.
#
# A reply passes if it makes exactly one call, to the right tool, whose arguments are JSON that fits the tool's schema
# and have the right values.

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTask:
    """One request that needs a tool. ``values`` are the arguments to compare, texts without case."""

    request: str
    tool: str
    values: Mapping[str, Any]

    @property
    def prompt(self) -> Prompt:
        """Return the request with its tool and an irrelevant one."""
        names = [self.tool, "set_timer" if self.tool != "set_timer" else "get_weather"]
        return Prompt(
            messages=(Message(role="user", content=self.request),), tools=tuple(TOOLS[n] for n in sorted(names))
        )


def _tool(name: str, description: str, required: Sequence[str] | None = None, **properties: Any) -> Tool:
    schemas = {key: value if isinstance(value, dict) else {"type": value} for key, value in properties.items()}
    needed = list(schemas if required is None else required)
    return Tool(
        name=name,
        description=description,
        parameters={"type": "object", "properties": schemas, "required": needed},
    )


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        _tool("get_weather", "Get the current weather of a city.", city="string"),
        _tool("set_timer", "Start a timer.", minutes="integer"),
        _tool("add", "Add two numbers.", a="number", b="number"),
        _tool("multiply", "Multiply two numbers.", a="number", b="number"),
        _tool("send_email", "Send an e-mail.", to="string", subject="string"),
        _tool("search_web", "Search the web.", query="string"),
        _tool("read_file", "Read a file.", path="string"),
        _tool("delete_file", "Delete a file.", path="string"),
        _tool("translate", "Translate a text.", text="string", language="string"),
        _tool("turn_light", "Switch a light.", room="string", state={"type": "string", "enum": ["on", "off"]}),
        _tool("convert_money", "Convert an amount of money.", amount="number", source="string", target="string"),
        _tool("create_event", "Put an event into the calendar.", title="string", day="string"),
        _tool("get_stock_price", "Get the price of a share.", symbol="string"),
        _tool("play_music", "Play music.", artist="string"),
        _tool("set_temperature", "Set the heating.", degrees="number"),
        _tool("remind_me", "Set a reminder.", text="string"),
    )
}

TOOL_TASKS: tuple[ToolTask, ...] = tuple(
    ToolTask(request=request, tool=tool, values=values)
    for request, tool, values in (
        ("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
        ("Is it raining in Tokyo right now?", "get_weather", {"city": "Tokyo"}),
        ("Set a timer for 10 minutes.", "set_timer", {"minutes": 10}),
        ("Start a timer of 25 minutes, please.", "set_timer", {"minutes": 25}),
        ("Use the tool to add 17 and 25.", "add", {"a": 17, "b": 25}),
        ("Multiply 6 by 7 with the tool.", "multiply", {"a": 6, "b": 7}),
        (
            "Send an e-mail to u2@example.com with the subject Lunch.",
            "send_email",
            {"to": "u2@example.com", "subject": "Lunch"},
        ),
        ("Search the web for solar panels.", "search_web", {"query": "solar panels"}),
        ("Read the file notes.txt.", "read_file", {"path": "notes.txt"}),
        ("Show me what is in config/app.toml.", "read_file", {"path": "config/app.toml"}),
        ("Delete the file old.log.", "delete_file", {"path": "old.log"}),
        ("Translate 'good morning' to French.", "translate", {"text": "good morning", "language": "French"}),
        ("Turn the light in the kitchen on.", "turn_light", {"room": "kitchen", "state": "on"}),
        ("Switch off the bedroom light.", "turn_light", {"room": "bedroom", "state": "off"}),
        (
            "Convert 50 USD to EUR.",
            "convert_money",
            {"amount": 50, "source": "USD", "target": "EUR"},
        ),
        ("Put an event called Dentist on Friday.", "create_event", {"title": "Dentist", "day": "Friday"}),
        ("What is the share price of AAPL?", "get_stock_price", {"symbol": "AAPL"}),
        ("Play some music by Mozart.", "play_music", {"artist": "Mozart"}),
        ("Set the heating to 21 degrees.", "set_temperature", {"degrees": 21}),
        ("Remind me to water the plants.", "remind_me", {"text": "water the plants"}),
    )
)


def mistake(task: ToolTask, calls: Sequence[ToolCall]) -> str | None:
    """Return the reason why the calls do not answer the task; None if they do."""
    if len(calls) != 1:
        return f"{len(calls)} calls"
    [call] = calls
    if call.name != task.tool:
        return f"called {call.name}"
    try:
        arguments = json.loads(call.arguments)
    except json.JSONDecodeError as error:
        return f"arguments that are no JSON: {error}"
    return schema_error(TOOLS[task.tool].parameters, arguments) or _wrong_value(task.values, arguments)


def schema_error(schema: Mapping[str, Any], value: Any, at: str = "arguments") -> str | None:
    """Return the mismatch between a value and a JSON schema of types, enums, items, properties and required.

    Returns None if the value fits.
    """
    kind = str(schema.get("type"))
    if kind in _TYPES and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return f"{at} is no {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at} is none of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, list):
        items = schema.get("items", {})
        return next((why for part in value if (why := schema_error(items, part, f"{at}[]")) is not None), None)
    if not isinstance(value, dict) or "properties" not in schema:
        return None
    properties = schema["properties"]
    lacking = [name for name in schema.get("required", ()) if name not in value]
    if lacking:
        return f"{at} lacks {', '.join(lacking)}"
    for name, part in value.items():
        if name not in properties:
            return f"{at} has {name}, which the tool does not take"
        fault = schema_error(properties[name], part, f"{at}.{name}")
        if fault:
            return fault
    return None


def _wrong_value(wanted: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    for name, value in wanted.items():
        if _normalized(arguments[name]) != _normalized(value):
            return f"{name} is {arguments[name]!r}, not {value!r}"
    return None


def _normalized(value: Any) -> Any:
    return value.strip().strip(".").casefold() if isinstance(value, str) else value
