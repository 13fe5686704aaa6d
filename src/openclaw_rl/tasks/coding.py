"""Coding tasks: small functions to write, each with checks that a program runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingTask:
    """One function to write: its signature, what it does, and expressions that are true when it does."""

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
    """The code of a reply: its first fenced block, else all of it."""
    found = _BLOCK.search(reply)
    return found[1] if found else reply


def program(task: CodingTask, reply: str) -> str:
    """The reply's code followed by the checks; it ends with code 0 only if every check is true."""
    checks = "\n".join(f"assert {check}, {check!r}" for check in task.checks)
    return f"{code_of(reply)}\n\n{checks}\nprint('passed')\n"
