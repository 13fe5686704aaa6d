"""The curriculum of tool-call tasks: from one call with a single tool upward."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.envs.curricula import WORDS, TaskCurriculum
from openclaw_rl.envs.toolcall.tools_config import WantedCall

ROOMS = ("kitchen", "bedroom", "bathroom", "hall", "garage", "office", "attic", "cellar", "garden", "library")
CITIES = (
    *("Paris", "Tokyo", "Lima", "Oslo", "Cairo", "Rome", "Delhi", "Quito", "Seoul", "Vienna", "Prague", "Dublin"),
    *("Lisbon", "Nairobi", "Havana", "Athens", "Berlin", "Madrid", "Ottawa", "Hanoi", "Accra", "Bogota", "Riga"),
)
MONEY = ("USD", "EUR", "JPY", "GBP", "CHF", "SEK", "INR", "BRL", "CAD", "AUD", "NOK", "PLN")
NAMES = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Iris", "Jon", "Kim", "Leo", "Mia", "Nils", "Olga")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTask:
    """A request, the available tools and the required calls; or the required output of a program.

    ``gold`` are the calls of a solution, lookups included.
    """

    instruction: str
    tools: tuple[str, ...]
    gold: tuple[WantedCall, ...]
    wanted: tuple[WantedCall, ...] = ()
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    printed: str | None = None
    steps: int = 1

    @property
    def called(self) -> frozenset[str]:
        """The tools that a solution uses."""
        return frozenset(call.tool for call in self.gold)


def one_call(instruction: str, tools: tuple[str, ...], tool: str, **arguments: Any) -> CallTask:
    call = WantedCall(tool=tool, arguments=arguments)
    return CallTask(instruction=instruction, tools=tools, gold=(call,), wanted=(call,))


def timer(rng: random.Random) -> CallTask:
    minutes = rng.randint(1, 120)
    return one_call(f"Set a timer for {minutes} minutes.", ("set_timer",), "set_timer", minutes=minutes)


def weather(rng: random.Random) -> CallTask:
    city = rng.choice(CITIES)
    words = rng.choice(("What is the weather in {}?", "Is it raining in {}?", "How warm is it in {} now?"))
    return one_call(words.format(city), ("get_weather",), "get_weather", city=city)


def sums(rng: random.Random) -> CallTask:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    return one_call(f"Add {a} and {b}.", ("add",), "add", a=a, b=b)


def light(rng: random.Random) -> CallTask:
    room, state = rng.choice(ROOMS), rng.choice(("on", "off"))
    words = rng.choice(
        ("Turn the light in the {room} {state}.", "Switch {state} the {room} light.", "{room} light {state}, please.")
    )
    return one_call(words.format(room=room, state=state), ("turn_light",), "turn_light", room=room, state=state)


def mail(rng: random.Random) -> CallTask:
    to, subject = f"{rng.choice(NAMES).lower()}@{rng.choice(WORDS)}", rng.choice(WORDS).capitalize()
    return one_call(
        f"Send an e-mail to {to} with the subject {subject}.", ("send_email",), "send_email", to=to, subject=subject
    )


def choose_of_two(rng: random.Random) -> CallTask:
    return _choice(rng, 2)


def choose_of_four(rng: random.Random) -> CallTask:
    return _choice(rng, 4)


def _choice(rng: random.Random, count: int) -> CallTask:
    """Generate one of the requests above with ``count`` tools."""
    task = rng.choice((timer, weather, sums, light))(rng)
    distractors = [
        name for name in ("set_timer", "get_weather", "add", "turn_light", "multiply") if name not in task.tools
    ]
    tools = (*task.tools, *rng.sample(distractors, count - 1))
    return CallTask(instruction=task.instruction, tools=tuple(sorted(tools)), gold=task.gold, wanted=task.wanted)


def money(rng: random.Random) -> CallTask:
    amount, (source, target) = rng.randint(2, 900), rng.sample(MONEY, 2)
    words = rng.choice(("Convert {} {} to {}.", "How much are {} {} in {}?"))
    tools = ("add", "convert_money")
    instruction = words.format(amount, source, target)
    return one_call(instruction, tools, "convert_money", amount=amount, source=source, target=target)


def two_calls(rng: random.Random) -> CallTask:
    first, second = rng.sample(ROOMS, 2)
    state = rng.choice(("on", "off"))
    calls = tuple(WantedCall(tool="turn_light", arguments={"room": room, "state": state}) for room in (first, second))
    return CallTask(
        instruction=f"Turn the lights in the {first} and in the {second} {state}.",
        tools=("turn_light",),
        gold=calls,
        wanted=calls,
        steps=2,
    )


def program(rng: random.Random) -> CallTask:
    a, b, c = rng.randint(12, 99), rng.randint(12, 99), rng.randint(2, 99)
    sign = rng.choice("+-")
    return CallTask(
        instruction=f"Work out {a} * {b} {sign} {c} with a program that prints the result.",
        tools=("python",),
        gold=(WantedCall(tool="python", arguments={"code": f"print({a} * {b} {sign} {c})"}),),
        printed=str(a * b + (c if sign == "+" else -c)),
    )


def look_up_first(rng: random.Random) -> CallTask:
    name, subject = rng.choice(NAMES), rng.choice(WORDS).capitalize()
    address = f"{name.lower()}{rng.randint(10, 99)}@{rng.choice(WORDS)}"
    send = WantedCall(tool="send_email", arguments={"to": address, "subject": subject})
    return CallTask(
        instruction=f"Send {name} an e-mail with the subject {subject}. Look the address up first.",
        tools=("find_contact", "send_email"),
        gold=(WantedCall(tool="find_contact", arguments={"name": name}), send),
        wanted=(send,),
        facts={"find_contact": {name.casefold(): address}},
        steps=3,
    )


def total_price(rng: random.Random) -> CallTask:
    first, second = rng.sample(WORDS, 2)
    prices = {first: str(rng.randint(2, 90)), second: str(rng.randint(2, 90))}
    total = WantedCall(tool="add", arguments={"a": int(prices[first]), "b": int(prices[second])})
    return CallTask(
        instruction=f"Look up the prices of {first} and {second}, then add them with the tool.",
        tools=("add", "get_price"),
        gold=(*(WantedCall(tool="get_price", arguments={"item": item}) for item in prices), total),
        wanted=(total,),
        facts={"get_price": prices},
        steps=4,
    )


CURRICULUM: TaskCurriculum[CallTask] = TaskCurriculum(
    name="toolcall",
    levels={
        "timer": timer,
        "weather": weather,
        "sums": sums,
        "light": light,
        "mail": mail,
        "choose-of-two": choose_of_two,
        "choose-of-four": choose_of_four,
        "money": money,
        "program": program,
        "two-calls": two_calls,
        "look-up-first": look_up_first,
        "total-price": total_price,
    },
)
"""the levels, from easy to hard"""
