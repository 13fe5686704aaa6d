"""What it costs to find out which turn a request follows, with many conversations open at once.

    python benchmarks/collect.py [--threads 10000] [--messages 20] [--requests 2000] [--json]

Every thread has its own history of ``--messages`` messages; a third of all replies are the same few words, as tool
calls and short answers are in real traffic. Measured is `Threads.add` for the next request of a random thread, with few
threads open and with many; then what memory holds, and what is left of it once all threads are idle. The named
alternative is the plain way: compare the request's history with that of every open thread, newest first.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence

from openclaw_rl.collect.threads import Threads
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Turn

WORDS = ("the", "agent", "reads", "one", "file", "and", "writes", "down", "what", "it", "found", "for", "later", "use")
COMMON = ("ok", "Done.", "Yes, I will do that.", "I have read the file and found nothing.")


def text(rng: random.Random, words: int = 60) -> str:
    """About 300 characters of a chat."""
    return " ".join(rng.choices(WORDS, k=words)) + f" {rng.random()}"


def said(rng: random.Random) -> Message:
    return Message(role="assistant", content=rng.choice(COMMON) if rng.random() < 1 / 3 else text(rng))


def turn(history: Sequence[Message], reply: Message, *, at: float) -> Turn:
    completion = Completion(
        reply=reply,
        prompt_tokens=(1,),
        reply_tokens=(2,),
        logprobs=(-0.1,),
        sampling=Sampling(),
        finish="stop",
        version=0,
    )
    return Turn(prompt=Prompt(messages=tuple(history)), completion=completion, user="u1", at=at)


def opened(rng: random.Random, messages: int) -> list[Message]:
    """A history that ends with a user's message, a clock in its system prompt."""
    talk = [Message(role="system", content=f"You help. It is {rng.random()}. " + text(rng, 400))]
    for _ in range(messages // 2):
        talk += [Message(role="user", content=text(rng)), said(rng)]
    return talk[:-1]


def measure(number: int, messages: int, requests: int) -> dict[str, float]:
    """Seconds per request and per message against ``number`` open threads, memory in bytes."""
    rng = random.Random(1)
    threads = Threads(idle=1800.0, capacity=number + requests)
    talks = [opened(rng, messages) for _ in range(number)]
    gc.collect()
    tracemalloc.start()
    for seq, talk in enumerate(talks):
        talk.append(said(rng))
        threads.add(seq, turn(talk[:-1], talk[-1], at=0.0))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    whole: list[float] = []
    each: list[float] = []
    found = 0
    for seq, talk in enumerate(rng.sample(talks, requests), number):
        talk.append(Message(role="user", content=text(rng)))
        reply = said(rng)
        asked = turn(talk, reply, at=1.0)
        begin = time.perf_counter()
        found += bool(threads.add(seq, asked))
        whole.append(time.perf_counter() - begin)
        each.append(whole[-1] / len(talk))
        talk.append(reply)
    remembered = len(threads)
    threads.expire(1e9)
    return {
        "threads": number,
        "messages": messages,
        "request_median_us": 1e6 * statistics.median(whole),
        "request_p99_us": 1e6 * statistics.quantiles(whole, n=100)[98],
        "message_median_us": 1e6 * statistics.median(each),
        "matched": found / requests,
        "bytes_per_thread": held / number,
        "remembered": remembered,
        "remembered_when_idle": len(threads),
    }


def plainly(number: int, messages: int, requests: int) -> float:
    """Median microseconds per request of the alternative; it knows no clock, so the system prompt is left out."""
    rng = random.Random(1)
    talks = [[(m.role, m.content) for m in opened(rng, messages)[1:]] for _ in range(number)]
    taken = []
    for talk in rng.sample(talks, requests):
        asked = [*talk, ("user", text(rng))]
        begin = time.perf_counter()
        found = next(known for known in reversed(talks) if asked[: len(known)] == known)
        taken.append(time.perf_counter() - begin)
        assert found is talk
    return 1e6 * statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=20)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    args = parser.parse_args()
    rows = [measure(number, args.messages, min(args.requests, number)) for number in (100, args.threads)]
    for row in rows:
        print(json.dumps(row) if args.json else "  ".join(f"{name} {value:,.1f}" for name, value in row.items()))
    few, many = (row["request_median_us"] for row in rows)
    plain = plainly(args.threads, args.messages, min(args.requests, args.threads, 200))
    ratios = {"many_to_few": many / few, "plain_us": plain, "to_plain": many / plain}
    print(json.dumps(ratios) if args.json else "  ".join(f"{name} {value:,.2f}" for name, value in ratios.items()))


if __name__ == "__main__":
    main()
