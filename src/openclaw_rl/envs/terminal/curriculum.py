"""The curriculum of terminal tasks: from one command upward, each with its files, a gold solution and its checks.

A level is a function of a random generator. Instructions contain no part of the answer, except where it is to be
copied.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from openclaw_rl.envs.curricula import WORDS, TaskCurriculum
from openclaw_rl.envs.sandbox import HOME
from openclaw_rl.envs.terminal.tasks import FileHolds, Holds, Printed, TerminalTask

ANSWER = "answer.txt"
"""file for a program's output or answer"""


def in_files(task: TerminalTask) -> TerminalTask:
    """Return the task for a program whose commands are not observed: output or answer are written to a file instead."""
    printed = [check for check in task.checks if isinstance(check, Printed)]
    if task.answered:
        return replace(task, instruction=f"{task.instruction} Write the answer alone into the file {ANSWER}.")
    if not printed:
        return task
    return replace(
        task,
        instruction=f"{task.instruction} Do not print it: write it into the file {ANSWER}.",
        gold=(*task.gold[:-1], f"({task.gold[-1]}) > {ANSWER}"),
        checks=tuple(_answered(check) if isinstance(check, Printed) else check for check in task.checks),
    )


def _answered(check: Printed) -> FileHolds:
    return FileHolds(path=at(ANSWER), text=check.text, any_order=check.any_order)


def at(name: str) -> str:
    return f"{HOME}/{name}"


def lines(rng: random.Random, low: int, high: int) -> str:
    """Return a text with ``low`` to ``high`` lines, three words each."""
    return "".join(" ".join(rng.sample(WORDS, 3)) + "\n" for _ in range(rng.randint(low, high)))


def print_word(rng: random.Random) -> TerminalTask:
    word = rng.choice(WORDS)
    return TerminalTask(instruction=f"Print the word {word}.", gold=(f"echo {word}",), checks=(Printed(text=word),))


def make_folder(rng: random.Random) -> TerminalTask:
    name = rng.choice(WORDS)
    return TerminalTask(
        instruction=f"Make a folder named {name}.", gold=(f"mkdir {name}",), checks=(Holds(path=at(name), names=()),)
    )


def write_word(rng: random.Random) -> TerminalTask:
    word, name = rng.sample(WORDS, 2)
    return TerminalTask(
        instruction=f"Write the word {word} into the file {name}.txt.",
        gold=(f"echo {word} > {name}.txt",),
        checks=(FileHolds(path=at(f"{name}.txt"), text=word),),
    )


def show_file(rng: random.Random) -> TerminalTask:
    name, text = rng.choice(WORDS), lines(rng, 1, 3)
    return TerminalTask(
        instruction=f"Print what is in the file {name}.txt.",
        files={f"{name}.txt": text},
        gold=(f"cat {name}.txt",),
        checks=(Printed(text=text),),
    )


def delete_file(rng: random.Random) -> TerminalTask:
    first, second, third = rng.sample(WORDS, 3)
    return TerminalTask(
        instruction=f"Delete the file {first}.txt and leave the others.",
        files={f"{name}.txt": f"{name}\n" for name in (first, second, third)},
        gold=(f"rm {first}.txt",),
        checks=(Holds(path=HOME, names=(f"{second}.txt", f"{third}.txt")),),
    )


def copy_file(rng: random.Random) -> TerminalTask:
    first, second = rng.sample(WORDS, 2)
    text = lines(rng, 1, 3)
    return TerminalTask(
        instruction=f"Copy the file {first}.txt to {second}.txt.",
        files={f"{first}.txt": text},
        gold=(f"cp {first}.txt {second}.txt",),
        checks=tuple(FileHolds(path=at(f"{name}.txt"), text=text) for name in (first, second)),
    )


def rename_file(rng: random.Random) -> TerminalTask:
    first, second = rng.sample(WORDS, 2)
    text = lines(rng, 1, 3)
    return TerminalTask(
        instruction=f"Rename the file {first}.txt to {second}.txt.",
        files={f"{first}.txt": text},
        gold=(f"mv {first}.txt {second}.txt",),
        checks=(Holds(path=HOME, names=(f"{second}.txt",)), FileHolds(path=at(f"{second}.txt"), text=text)),
    )


def count_lines(rng: random.Random) -> TerminalTask:
    name, text = rng.choice(WORDS), lines(rng, 3, 40)
    return TerminalTask(
        instruction=f"Print how many lines the file {name}.txt has.",
        files={f"{name}.txt": text},
        gold=(f"wc -l < {name}.txt",),
        checks=(Printed(text=str(len(text.splitlines()))),),
    )


def first_line(rng: random.Random) -> TerminalTask:
    name, text = rng.choice(WORDS), lines(rng, 4, 9)
    which, program = rng.choice((("first", "head"), ("last", "tail")))
    return TerminalTask(
        instruction=f"Print the {which} line of the file {name}.txt.",
        files={f"{name}.txt": text},
        gold=(f"{program} -n 1 {name}.txt",),
        checks=(Printed(text=text.splitlines()[0 if which == "first" else -1]),),
    )


def find_lines(rng: random.Random) -> TerminalTask:
    name, word, *fillers = rng.sample(WORDS, 8)
    matches = [f"{word} {filler}" for filler in fillers[:2]]
    text = [*matches, *fillers[2:]]
    rng.shuffle(text)
    return TerminalTask(
        instruction=f"Print the lines of {name}.txt that have the word {word}.",
        files={f"{name}.txt": "\n".join(text) + "\n"},
        gold=(f"grep {word} {name}.txt",),
        checks=(Printed(text="\n".join(line for line in text if line in matches)),),
    )


def sort_file(rng: random.Random) -> TerminalTask:
    first, second, *words = rng.sample(WORDS, 9)
    return TerminalTask(
        instruction=f"Write the lines of {first}.txt, sorted, into {second}.txt.",
        files={f"{first}.txt": "\n".join(words) + "\n"},
        gold=(f"sort {first}.txt > {second}.txt",),
        checks=(FileHolds(path=at(f"{second}.txt"), text="\n".join(sorted(words))),),
    )


def count_files(rng: random.Random) -> TerminalTask:
    kinds = rng.sample(("txt", "log", "csv", "md", "json"), 2)
    names = rng.sample(WORDS, 16)
    count, other_count = rng.randint(3, 8), rng.randint(1, 5)
    folder = names.pop()
    files = [f"{name}.{kinds[0]}" for name in names[:count]] + [
        f"{name}.{kinds[1]}" for name in names[count:][:other_count]
    ]
    return TerminalTask(
        instruction=f"Print how many files in the folder {folder} end in .{kinds[0]}.",
        files={f"{folder}/{name}": "" for name in files},
        gold=(f"ls {folder}/*.{kinds[0]} | wc -l",),
        checks=(Printed(text=str(count)),),
        steps=2,
    )


def find_file(rng: random.Random) -> TerminalTask:
    top, name, *words = rng.sample(WORDS, 8)
    path = "/".join([top, *words[: rng.randint(1, 3)], f"{name}.txt"])
    return TerminalTask(
        instruction=f"Somewhere below the folder {top} is the file {name}.txt. "
        f"Print its path, which begins with {top}/.",
        files={path: "here\n", **{f"{top}/{word}/other.txt": "no\n" for word in words[3:]}},
        gold=(f"find {top} -name {name}.txt",),
        checks=(Printed(text=path),),
        steps=3,
    )


def replace_word(rng: random.Random) -> TerminalTask:
    name, old, new, *words = rng.sample(WORDS, 7)
    text = [old, *words, f"{words[0]} {old}"]
    rng.shuffle(text)
    return TerminalTask(
        instruction=f"In the file {name}.txt, replace every {old} with {new}.",
        files={f"{name}.txt": "\n".join(text) + "\n"},
        gold=(f"sed -i s/{old}/{new}/g {name}.txt",),
        checks=(FileHolds(path=at(f"{name}.txt"), text="\n".join(line.replace(old, new) for line in text)),),
        steps=3,
    )


def sum_column(rng: random.Random) -> TerminalTask:
    name, *items = rng.sample(WORDS, rng.randint(5, 9))
    prices = [rng.randint(1, 99) for _ in items]
    rows = "".join(f"{item},{price}\n" for item, price in zip(items, prices, strict=True))
    return TerminalTask(
        instruction=f"The file {name}.csv has an item and a price on each line, with a comma between. "
        "Print the sum of the prices.",
        files={f"{name}.csv": rows},
        gold=(f"awk -F, '{{s += $2}} END {{print s}}' {name}.csv",),
        checks=(Printed(text=str(sum(prices))),),
        steps=3,
    )


def rename_all(rng: random.Random) -> TerminalTask:
    folder, *names = rng.sample(WORDS, rng.randint(4, 7))
    old, new = rng.sample(("txt", "log", "csv", "md", "dat"), 2)
    untouched = f"{rng.choice(WORDS)}.keep"
    renamed = tuple(f"{name}.{new}" for name in names)
    return TerminalTask(
        instruction=f"In the folder {folder}, rename every file that ends in .{old} so that it ends in .{new}.",
        files={f"{folder}/{untouched}": "", **{f"{folder}/{name}.{old}": f"{name}\n" for name in names}},
        gold=(f'cd {folder} && for f in *.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done',),
        checks=(
            Holds(path=at(folder), names=(untouched, *renamed)),
            *(FileHolds(path=at(f"{folder}/{name}.{new}"), text=name) for name in names),
        ),
        steps=4,
    )


def most_frequent(rng: random.Random) -> TerminalTask:
    name, *words = rng.sample(WORDS, 6)
    counts = {word: number for number, word in enumerate(words, start=2)}
    text = [word for word, number in counts.items() for _ in range(number)]
    rng.shuffle(text)
    [(most, _)] = Counter(text).most_common(1)
    return TerminalTask(
        instruction=f"Write the word that is most often in {name}.txt, which has one word on each line, "
        "into the file answer.txt.",
        files={f"{name}.txt": "\n".join(text) + "\n"},
        gold=(f"sort {name}.txt | uniq -c | sort -rn | head -n 1 | awk '{{print $2}}' > answer.txt",),
        checks=(FileHolds(path=at("answer.txt"), text=most),),
        steps=4,
    )


def tidy_up(rng: random.Random) -> TerminalTask:
    folder, *names = rng.sample(WORDS, 7)
    number = rng.randint(2, 4)
    logs, texts = [f"{name}.log" for name in names[:number]], [f"{name}.txt" for name in names[number:]]
    return TerminalTask(
        instruction=f"Make the folder {folder}, move all .log files into it, and write how many there were "
        f"into {folder}/count.txt.",
        files={name: f"{name}\n" for name in (*logs, *texts)},
        gold=(f"mkdir {folder}", f"mv *.log {folder}", f"ls {folder}/*.log | wc -l > {folder}/count.txt"),
        checks=(
            Holds(path=HOME, names=(folder, *texts)),
            Holds(path=at(folder), names=(*logs, "count.txt")),
            FileHolds(path=at(f"{folder}/count.txt"), text=str(number)),
        ),
        steps=6,
    )


CURRICULUM: TaskCurriculum[TerminalTask] = TaskCurriculum(
    name="terminal",
    levels={
        "print-word": print_word,
        "make-folder": make_folder,
        "write-word": write_word,
        "show-file": show_file,
        "delete-file": delete_file,
        "copy-file": copy_file,
        "rename-file": rename_file,
        "count-lines": count_lines,
        "first-line": first_line,
        "find-lines": find_lines,
        "sort-file": sort_file,
        "count-files": count_files,
        "find-file": find_file,
        "replace-word": replace_word,
        "sum-column": sum_column,
        "rename-all": rename_all,
        "most-frequent": most_frequent,
        "tidy-up": tidy_up,
    },
)
"""the levels, from easy to hard"""
