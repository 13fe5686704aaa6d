"""The environments view: results of tasks, by task and by version, and episodes step by step."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from openclaw_rl.page.charts import chart
from openclaw_rl.page.html import Child, Html, chip, clipped, el, empty, header, join, text, when
from openclaw_rl.store.results import EpisodeLine
from openclaw_rl.types import Message, Turn
from openclaw_rl.views.browse import Curve
from openclaw_rl.views.environments import EpisodeStep, Part, TaskLine, screens

_SHOWN = 4000
_TASKS = 100


def environments_view(
    tasks: Sequence[TaskLine], wins: Sequence[tuple[str, Curve]], greedy: Curve, *, replays: bool
) -> Html:
    """Draw success by version, greedy before sampled, and by task.

    ``replays``: True if this person may read the episodes.
    """
    top = header("Environments", "How the newest episodes ended, by version and by task.")
    if not tasks:
        hint = "Play some: openclaw-rl up --set env.type=terminal. Episodes are shown by task as they end."
        return join(top, empty("No episode yet", hint))
    by_env: dict[str, list[TaskLine]] = {}
    for task in tasks:
        by_env.setdefault(task.environment, []).append(task)
    # The gate plays tasks from this run's training environment; with several environments, the page cannot tell which.
    beside = (greedy,) if len(by_env) == 1 else ()
    above = None if beside else _curves(greedy)
    drawn = [
        _environment(name, lines, (*beside, *(curve for of, curve in wins if of == name)), replays=replays)
        for name, lines in by_env.items()
    ]
    return join(top, el("div", above, *drawn, data_live="environments", class_="cards"))


def _curves(*curves: Curve) -> Html | None:
    drawn = [chart(curve) for curve in curves if curve.points]
    return el("div", *drawn, class_="curves") if drawn else None


def _environment(name: str, tasks: Sequence[TaskLine], curves: Sequence[Curve], *, replays: bool) -> Html:
    episodes, won = sum(task.episodes for task in tasks), sum(task.won for task in tasks)
    share = f"{won / max(episodes, 1):.0%} of {episodes} episode{'s' * (episodes != 1)} won"
    read = el("a", "Read the newest episodes", href=_address(env=name)) if replays else None
    top = el("header", el("h2", name), el("p", share, read, class_="row faint"))
    rows = [_task(name, task, replays=replays) for task in tasks[:_TASKS]]
    table = _table(("Task", "Won", "Mean outcome", "Failed", "Last"), rows)
    return join(_curves(*curves), el("section", top, table, class_="card listing"))


def _task(name: str, task: TaskLine, *, replays: bool) -> Html:
    named: Child = el("a", task.task, href=_address(env=name, task=task.task)) if replays else task.task
    cells: tuple[Child, ...] = (
        named,
        f"{task.won} of {task.episodes}",
        "" if task.mean is None else f"{task.mean:+.2f}",
        task.failed or "",
        when(task.at),
    )
    return el("tr", *[el("td", cell) for cell in cells])


def _table(titles: Sequence[str], rows: Sequence[Html]) -> Html:
    top = el("thead", el("tr", *[el("th", title, scope="col") for title in titles]))
    return el("div", el("table", top, el("tbody", *rows)), class_="scroll", tabindex=0)


def _address(**query: str) -> str:
    return "/environments?" + urlencode(query)


# --- a task's episodes ---


def episodes_view(environment: str, task: str | None, episodes: Sequence[EpisodeLine], curve: Curve) -> Html:
    """Draw the newest episodes, each with its result."""
    back = el("a", "All environments", href="/environments", class_="button")
    top = header(task or environment, f"The newest episodes of {environment}.", back)
    if not episodes:
        return join(top, empty("No episodes", "This task was not played, or not recently."))
    titles = ("Episode", *(() if task else ("Task",)), "Outcome", "Steps", "Version", "When")
    rows = [_episode(environment, entry, tasked=task is None) for entry in episodes]
    return join(
        top, el("div", _curves(curve), el("section", _table(titles, rows), class_="card listing"), class_="cards")
    )


def _episode(environment: str, one: EpisodeLine, *, tasked: bool) -> Html:
    cells: list[Child] = [el("a", clipped(one.session, 40), href=_address(env=environment, session=one.session))]
    if tasked:
        cells.append(one.task)
    cells += [_outcome(one), one.steps, "" if one.version is None else one.version, when(one.at)]
    return el("tr", *[el("td", cell) for cell in cells])


def _outcome(one: EpisodeLine) -> Html:
    if one.failed is not None:
        return chip(f"failed: {clipped(one.failed, 60)}")
    if one.score is None:
        return chip("no outcome")
    return chip(f"{'won' if one.score > 0 else 'lost'} {one.score:+g}", "good" if one.score > 0 else "bad")


# --- one episode ---


def replay_view(environment: str, session: str, steps: Sequence[EpisodeStep], ended: EpisodeLine | None) -> Html:
    """Draw the messages seen and the replies, step by step, with the screens if there are any."""
    task = ended.task if ended is not None else steps[0].turn.group or session
    back = el("a", "Episodes of this task", href=_address(env=environment, task=task), class_="button")
    turns = el(
        "a",
        "Its turns",
        href="/sessions?" + urlencode({"session": session, "user": steps[0].turn.user}),
        class_="button",
    )
    summary = f"{len(steps)} steps of {environment}, version {steps[0].turn.completion.version}"
    rows = [_step(number, step) for number, step in enumerate(steps, 1)]
    end = el("li", el("h2", "How it ended"), _outcome(ended), class_="card") if ended is not None else None
    return join(header(task, summary, turns, back), _strip(steps), el("ol", *rows, end, class_="replay"))


def _strip(steps: Sequence[EpisodeStep]) -> Html | None:
    """Draw all screens of an episode in one row, each linked to its step; None without screens."""
    numbered = [(number, _pictures(step)) for number, step in enumerate(steps, 1)]
    if not any(pictures for _, pictures in numbered):
        return None
    frames = [el("a", *pictures, href=f"#step-{number}") for number, pictures in numbered if pictures]
    return el("div", *frames, class_="strip", role="group", aria_label="The screens of this episode")


def _pictures(step: EpisodeStep) -> list[Html]:
    sent = [*_sent(step.turn, step.seen, "before"), *_sent(step.turn, step.after, "after")]
    return sent or [image for image in (_kept(step.screen), _kept(step.screen_after)) if image is not None]


def _step(number: int, step: EpisodeStep) -> Html:
    reply = step.turn.completion.reply
    calls = [el("pre", f"{call.name}({call.arguments})", class_="call", tabindex=0) for call in reply.tool_calls]
    did = [text(reply.content, most=_SHOWN) if reply.content else None, *calls]
    end = [*_seen(step.turn, step.after, "after"), _kept(step.screen_after)]
    after = [el("h3", "Result"), *end] if step.after or step.screen_after else []
    return el(
        "li",
        el("h2", f"Step {number} ", _worth(step)),
        el("div", el("h3", "Seen"), *_seen(step.turn, step.seen, "before"), _kept(step.screen), class_="seen"),
        el("div", el("h3", "Done"), *did, class_="done"),
        el("div", *after, class_="seen") if after else None,
        id=f"step-{number}",
        class_="card",
    )


def _worth(step: EpisodeStep) -> Html | None:
    score = step.verdict.score if step.verdict is not None else None
    if score is None:
        return None
    return chip(f"worth {score:+g}", "good" if score > 0 else "bad" if score < 0 else "")


def _seen(turn: Turn, messages: Sequence[Message], part: Part) -> list[Html]:
    contents = [el("pre", clipped_lines(message.content), tabindex=0) for message in messages if message.content]
    return [*contents, *_sent(turn, messages, part)]


def _sent(turn: Turn, messages: Sequence[Message], part: Part) -> list[Html]:
    """Draw the pictures that were sent with messages."""
    return [_screen(turn, part, number) for number in range(len(screens(messages)))]


def _screen(turn: Turn, part: Part, number: int) -> Html:
    address = "/screen?" + urlencode({"turn": turn.id, "part": part, "number": number})
    return el("img", src=address, alt=f"The screen, picture {number + 1}", loading="lazy", class_="screen")


def _kept(name: str | None) -> Html | None:
    if name is None:
        return None
    return el("img", src=f"/screen?kept={name}", alt="The screen", loading="lazy", class_="screen")


def clipped_lines(words: str) -> str:
    """Return a text with its lines; a long text loses its middle.

    >>> clipped_lines("a" * 5000).count("a")
    4000
    """
    if len(words) <= _SHOWN:
        return words
    half = _SHOWN // 2
    return f"{words[:half]}\n… {len(words) - _SHOWN:,} characters …\n{words[-half:]}"
