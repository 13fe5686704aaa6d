"""The gui environment in a real Chromium: every action, tasks of MiniWoB++ and of a user's own, no way out."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxes import needs_sandbox

from openclaw_rl.envs.audit import audit_task
from openclaw_rl.envs.gui import browsers, by_playwright, by_selenium
from openclaw_rl.envs.gui.env import GuiEnv, gui
from openclaw_rl.envs.gui.own_pages import OwnPages
from openclaw_rl.envs.gui.page import GuiPage, Refused
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.ports import Env, Observation, SupportsExclusions, SupportsOutcome, SupportsSolution, SupportsTaskSets
from openclaw_rl.types import Message, ToolCall

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SHOP = Path(__file__).parents[1] / "examples" / "gui" / "tasks.jsonl"
pytestmark = [
    pytest.mark.slow,
    needs_sandbox,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; as root: apt-get install chromium"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="the package playwright is not installed (make test)"
    ),
]
needs_miniwob = pytest.mark.skipif(
    importlib.util.find_spec("miniwob") is None, reason="the package miniwob is not installed (extra gui)"
)
needs_selenium = pytest.mark.skipif(
    importlib.util.find_spec("selenium") is None or shutil.which("chromedriver") is None,
    reason="selenium or chromedriver is not installed (extra gui; apt-get install chromium-driver)",
)
Run = Callable[[Awaitable[Any]], Any]

PAGE = """<!doctype html><title>All</title>
<style>#far { margin-top: 2000px }</style>
<button id=b>Press me</button> <span id=note>quiet</span>
<input aria-label=Name> <select aria-label=Fruit><option>Apples<option>Pears</select>
<input type=date aria-label=Day>
<div id=card draggable=true style="width:60px;height:20px">Card</div>
<div id=bin style="width:60px;height:20px;background:silver" title=bin></div>
<a href="next.html" target="_blank">Next</a>
<p id=far>the end</p>
<script>
const said = word => { note.textContent += " " + word; };
b.onclick = () => said("clicked");
bin.onmouseenter = () => said("hovered");
b.ondblclick = () => said("doubled");
b.oncontextmenu = event => { event.preventDefault(); said("right"); };
document.querySelector("input").onkeydown = event => { if (event.key === "Enter") said("entered " + event.target.value); };
document.querySelector("select").onchange = event => said("chose " + event.target.value);
document.querySelector("[type=date]").onchange = event => said("day " + event.target.value);
card.ondragstart = event => event.dataTransfer.setData("text", "card");
bin.ondragover = event => event.preventDefault();
bin.ondrop = event => said("dropped " + event.dataTransfer.getData("text"));
addEventListener("scroll", () => said("scrolled"), { once: true });
alert("nobody answers this");
</script>"""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """One event loop for all, and so one browser."""
    with asyncio.Runner() as runner:
        yield lambda work: runner.run(_awaited(work))


async def _awaited(work: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(work, 120)


@pytest.fixture(autouse=True)
def few_browsers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each story has a folder, and so a browser, of its own: none is kept for long."""
    monkeypatch.setattr(browsers, "IDLE_SECONDS", 1.0)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "all.html").write_text(PAGE)
    (folder / "next.html").write_text("<title>Second</title><p>here</p>")
    return folder


def made(folder: Path, **given: Any) -> GuiEnv:
    names: dict[str, Any] = {
        "screenshot_backend": "playwright",
        "form": "text",
        "examples": None,
        "levels": (),
        "per_level": 2,
        "output_chars": 3000,
        "pages": None,
        "folder": None,
        "screenshots": "off",
        "screens": folder / "screens",
    }
    return gui(**{**names, **given})


def tasks_of(folder: Path, **row: Any) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text(json.dumps({"id": "one", "instruction": "Use it.", **row}) + "\n")
    return path


async def acted(env: GuiEnv, *lines: str) -> Observation:
    for line in lines:
        seen = await env.step(Message(role="assistant", content=f"```\n{line}\n```"))
    return seen


def note(seen: Observation) -> str:
    """What the page wrote down of what was done to it."""
    return next(line for line in seen.messages[-1].content.splitlines() if 'text "quiet' in line and line[0] == "[")


def test_every_action_works_on_a_real_page(run: Run, pages: Path, tmp_path: Path) -> None:
    env = made(tmp_path, pages=tasks_of(pages, address="all.html", check="location.pathname.endsWith('never')"))

    async def story() -> None:
        await env.reset("one", seed=0)
        assert note(await acted(env, 'click "Press me"')).endswith('"quiet clicked"')
        assert note(await acted(env, 'double "Press me"')).endswith('clicked clicked clicked doubled"')
        assert note(await acted(env, 'right "Press me"')).endswith('doubled right"')
        assert 'value="Ana"' in (await acted(env, 'type "Name" "Bo"', 'type "Name" "Ana"')).messages[0].content
        assert note(await acted(env, "press Enter")).endswith('entered Ana"')
        assert note(await acted(env, 'select "Fruit" "pears"')).endswith('chose Pears"')
        assert note(await acted(env, 'type "Day" "2024-05-01"')).endswith('day 2024-05-01"')
        assert note(await acted(env, 'hover "silver bin"')).endswith('hovered"')
        assert note(await acted(env, 'drag "Card" "silver bin"')).endswith('dropped card"')
        seen = await acted(env, "scroll down", "wait")
        assert 'scrolled" (off screen)' in seen.messages[0].content
        assert 'Screen "Second"' in (await acted(env, 'click "Next"')).messages[0].content
        assert 'Screen "All"' in (await acted(env, "back")).messages[0].content
        for line, fault in {
            "back": "no page before",
            'click "Nowhere"': "there is no 'Nowhere'",
            'select "Fruit" "Figs"': 'has no "Figs"',
            'type "Press me" "x"': "takes no text",
            "press Blah": "there is no key",
            "scroll up": "does not move further",
            "scroll sideways": "there is no direction",
            'type "Day" "soon"': "takes no",
        }.items():
            assert fault in (await acted(env, line)).messages[0].content
        over = await acted(env, "fail")
        assert (over.done, over.reward) == (True, -1.0)

    try:
        run(story())
    finally:
        run(env.close())


def test_a_users_own_pages_are_checked_by_javascript_or_python_and_audited(run: Run, tmp_path: Path) -> None:
    env = made(tmp_path, pages=SHOP, form="tools", screenshots="send")
    assert isinstance(env, Env)
    assert isinstance(env, SupportsOutcome)
    assert isinstance(env, SupportsTaskSets)
    for task in ("pears", "plums"):
        found = run(audit_task(lambda: made(tmp_path, pages=SHOP, form="tools"), task))
        assert (found.gold, found.nothing, found.fault) == (1.0, -1.0, "")

    async def story() -> None:
        prompt = await env.reset("plums", seed=0)
        assert [message.role for message in prompt.messages] == ["system", "user", "assistant", "tool"]
        assert "Fruit" not in prompt.messages[1].content, "what the page says comes from a tool"
        shot = prompt.messages[-1].images[0]
        assert shot.startswith("data:image/png;base64,iVBOR")
        calls = [{"element": "How many", "text": "2"}, {"element": "Fruit", "option": "Plums"}, {"element": "Add"}]
        named = tuple(
            ToolCall(id=f"c{number}", name=name, arguments=json.dumps(arguments))
            for number, (name, arguments) in enumerate(zip(("type", "select", "click"), calls, strict=True))
        )
        lost = await env.step(Message(role="assistant", content="```\njump 3\n```"))
        assert "there is no 'jump'" in lost.messages[0].content
        seen = await env.step(Message(role="assistant", tool_calls=named))
        assert [message.tool_call_id for message in seen.messages] == ["c0", "c1", "c2"]
        assert '{\\"Plums\\":2}' in seen.messages[-1].content
        assert await env.outcome() == 0.0, "half of it is done"
        over = await env.step(Message(role="assistant", content="That is all."))
        assert (over.done, over.reward) == (True, 0.0)

    run(story())
    run(env.close())
    kept = list((tmp_path / "screens").rglob("*.png"))
    lines = [json.loads(line) for line in (tmp_path / "screens" / "episodes.jsonl").read_text().splitlines()]
    assert {path.stem for path in kept} == {line["screen"] for line in lines}
    assert [line["step"] for line in lines] == [0, 1, 2], "by replies: one said nothing of use, one did three things"


def test_a_page_reaches_its_own_origin_and_nothing_else(run: Run, tmp_path: Path) -> None:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page = b"<title>Served</title><button>Go</button>"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n" + page)
        await writer.drain()
        writer.close()

    async def story() -> None:
        mine = await asyncio.start_server(served, "127.0.0.1", 0)
        other = await asyncio.start_server(served, "127.0.0.1", 0)
        place, elsewhere = (f"http://127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in (mine, other))
        env = made(tmp_path, pages=tasks_of(tmp_path, address=f"{place}/", check="false"))
        try:
            assert '[1] button "Go"' in (await env.reset("one", seed=0)).messages[-1].content
            page = env._begun().page
            ask = "fetch({!r}, {{mode: 'no-cors'}}).then(found => found.type + found.status, () => 'refused')"
            assert await page.run(ask.format(f"{place}/x")) == "basic200"
            assert await page.run(ask.format("file:///etc/passwd")) == "refused"
            assert await page.run(f"fetch('{elsewhere}/').then(() => 'reached', () => 'refused')") == "refused"
        finally:
            await env.close()
            mine.close()
            other.close()

    run(story())


@needs_miniwob
@pytest.mark.parametrize("form", ["text", "tools"])
def test_pages_of_miniwob_are_solved_by_script_and_pay_nothing_for_nothing(run: Run, tmp_path: Path, form: Any) -> None:
    env = made(tmp_path, form=form)
    assert isinstance(env, SupportsSolution)
    assert isinstance(env, SupportsExclusions)
    assert {*env.tasks()} & {*env.held_out()} == set()
    assert "simon-says" in env.excluded()
    for task in ("click-dialog-2/0", "click-checkboxes/1", "login-user/2"):
        found = run(audit_task(lambda: made(tmp_path, form=form, examples=0), task))
        assert (found.task, found.fault, found.gold) == (task, "", 1.0)


@needs_miniwob
def test_a_prompt_shows_solved_tasks_of_the_page_and_the_same_seed_begins_the_same_way(
    run: Run, tmp_path: Path
) -> None:
    async def begun() -> Any:
        env = made(tmp_path)
        try:
            return await env.reset("click-button/3", seed=0)
        finally:
            await env.close()

    first, second = run(begun()), run(begun())
    assert first == second
    assert [message.role for message in first.messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert first.messages[2].content.startswith("```\nclick ")


@needs_miniwob
@needs_selenium
def test_selenium_sees_and_pays_the_same_as_playwright(run: Run, tmp_path: Path) -> None:
    async def played(driver: str, task: str) -> list[str]:
        env = made(tmp_path, screenshot_backend=driver, examples=0)
        try:
            told = [(await env.reset(task, seed=0)).messages[-1].content]
            while (reply := await env.solution()) is not None:
                seen = await env.step(reply)
                told += [*(message.content for message in seen.messages), str(seen.reward)]
                if seen.done:
                    break
            return told
        finally:
            await env.close()

    for task in ("click-tab-2/1", "enter-text/0"):
        assert run(played("selenium", task)) == run(played("playwright", task))


def test_a_browser_that_dies_fails_its_episodes_and_the_next_gets_a_new_one(
    run: Run, pages: Path, tmp_path: Path
) -> None:
    tasks = tasks_of(pages, address="next.html", check="true")

    async def story() -> None:
        env = made(tmp_path, pages=tasks)
        await env.reset("one", seed=0)
        with pytest.raises(EnvFailed):
            await env._begun().page._tab.send("Browser.crash", {})
        with pytest.raises(EnvFailed):
            await env.step(Message(role="assistant", content="wait"))
        again = made(tmp_path, pages=tasks)
        assert '"Second"' in (await again.reset("one", seed=0)).messages[-1].content
        await again.close()
        await env.close()

    run(story())


def test_what_is_wrong_with_a_task_is_told_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>hi")
    for row, fault in (
        ({"address": "b.html", "check": "true"}, "there is no page"),
        ({"address": "a.html"}, "lacks check"),
        ({"address": "a.html", "check": "true", "gold": ["jump 3"]}, "'jump 3' is no action"),
        ({"address": "a.html", "check": "none.py:f"}, "there is no file"),
    ):
        with pytest.raises(ConfigError, match=fault) as caught:
            made(tmp_path, pages=tasks_of(tmp_path, **row))
        assert "tasks.jsonl:1" in str(caught.value)


def test_a_check_that_cannot_be_made_fails_the_episode_not_the_agent(run: Run, pages: Path, tmp_path: Path) -> None:
    env = made(tmp_path, pages=tasks_of(pages, address="next.html", check="nowhere.to.be.found"))

    async def story() -> None:
        await env.reset("one", seed=0)
        with pytest.raises(EnvFailed, match="nowhere is not defined"):
            await env.step(Message(role="assistant", content="wait"))

    run(story())
    run(env.close())


def test_a_tab_that_is_taken_over_holds_nothing_of_the_episode_before(
    run: Run, pages: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(OwnPages, "forgetful", True)
    env = made(tmp_path, pages=tasks_of(pages, address="next.html", check="false"))

    async def story() -> None:
        await env.reset("one", seed=0)
        before = env._begun().page
        await before.run("localStorage.setItem('seen', 'yes'); window.mark = 1")
        await env.reset("one", seed=0)
        page = env._begun().page
        assert page._tab._tab is before._tab._tab
        assert await page.run("localStorage.getItem('seen')") is None
        assert await page.run("typeof window.mark") == "undefined"
        with pytest.raises(Refused, match="no page before"):
            await page.back()
        await env.close()

    run(story())


@pytest.mark.parametrize(
    ("driver", "kept"),
    [("playwright", False), ("playwright", True), pytest.param("selenium", True, marks=needs_selenium)],
)
def test_a_script_that_never_ends_fails_its_own_episode(
    run: Run, pages: Path, tmp_path: Path, monkeypatch: Any, driver: str, kept: bool
) -> None:
    monkeypatch.setattr(OwnPages, "forgetful", kept)
    monkeypatch.setattr(browsers, "EMPTY_SECONDS", 2.0)
    monkeypatch.setattr(by_playwright, "ANSWER_SECONDS", 3.0)
    monkeypatch.setattr(by_selenium, "ANSWER_SECONDS", 3.0)
    (pages / "endless.html").write_text("<button onclick='for (;;) {}'>Begin</button>")
    (pages / "tasks.jsonl").write_text(
        json.dumps({"id": "endless", "instruction": "Use it.", "address": "endless.html", "check": "false"})
        + "\n"
        + json.dumps({"id": "next", "instruction": "Use it.", "address": "next.html", "check": "true"})
    )

    async def story() -> None:
        env = made(tmp_path, pages=pages / "tasks.jsonl", screenshot_backend=driver)
        await env.reset("endless", seed=0)
        with pytest.raises(EnvFailed, match="not answered within 3 s|Chromium is gone"):
            await acted(env, 'click "Begin"', "wait")
        await env.close()
        await env.reset("next", seed=0)
        assert (await acted(env, "done")).reward == 1
        await env.close()

    run(story())


def test_a_tab_that_was_not_prepared_is_not_taken_over(run: Run, pages: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(OwnPages, "forgetful", True)
    env = made(tmp_path, pages=tasks_of(pages, address="next.html", check="false"))

    async def fails(*_: Any, **__: Any) -> None:
        raise EnvFailed("not now")

    async def story() -> None:
        with monkeypatch.context() as broken:
            broken.setattr(GuiPage, "prepare", fails)
            with pytest.raises(EnvFailed, match="not now"):
                await env.reset("one", seed=0)
        await env.reset("one", seed=0)
        page = env._begun().page
        assert await page.run("[innerWidth, innerHeight]") == [1024, 768]
        await env.close()

    run(story())


def test_a_browser_that_is_used_now_and_then_is_kept(run: Run, pages: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(browsers, "IDLE_SECONDS", 4.0)
    env = made(tmp_path, pages=tasks_of(pages, address="next.html", check="false"))

    async def story() -> None:
        await env.reset("one", seed=0)
        (mine,) = [one for one in browsers._shared[asyncio.get_running_loop()].values() if one._lent]
        first = mine._running
        await env.close()
        for _ in range(2):
            await asyncio.sleep(browsers.IDLE_SECONDS * 0.7)
            await (await mine.lend()).close()
            assert mine._running is first
        assert mine._ending is not None
        await mine._ending
        assert mine._running is None

    run(story())


def test_one_browser_serves_all_and_ends_after_the_last(
    run: Run, pages: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(browsers, "IDLE_SECONDS", 0.1)
    tasks = tasks_of(pages, address="next.html", check="false")

    async def story() -> None:
        envs = [made(tmp_path, pages=tasks) for _ in range(4)]
        await asyncio.gather(*(env.reset("one", seed=0) for env in envs))
        shared = browsers._shared[asyncio.get_running_loop()]
        (mine,) = [one for one in shared.values() if one._lent]
        assert mine._lent == 4
        await asyncio.gather(*(env.close() for env in envs))
        assert mine._ending is not None
        await mine._ending
        assert mine._running is None

    run(story())
