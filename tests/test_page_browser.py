"""The page in a real browser: talk, correct, see it learned, roll back; and a model that writes what it should not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from test_local_models import embedded  # noqa: F401 (a fixture)

from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.clients.api import ApiClient
from openclaw_rl.page.door import Door
from openclaw_rl.page.site import Site, build_site
from openclaw_rl.ports import Delta, Stream
from openclaw_rl.store import LedgerReader, ServeLedger
from openclaw_rl.testing import fake_api, listening, make_completion
from openclaw_rl.types import Prompt, Sampling

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed (make test)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; as root: apt-get install chromium"),
]

MODEL = 400_000
"""milliseconds that a step of the embedded model may take there"""
PATIENCE = 20_000
"""milliseconds that anything may take where others keep the machine busy"""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
RULE = "Please keep it under 30 words."
SENTENCE = f"Too long. {RULE}"
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\n\n"
    "[click me](javascript:document.title='owned') [data](data:text/html,<script>1</script>) [fine](https://example.org/)\n\n"
    "<iframe srcdoc=\"<script>parent.document.title='owned'</script>\"></iframe>\n\n"
    "![](http://127.0.0.1:9/beacon)\n\n" + "x" * 1_000_000
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all stories."""
    playwright.expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as begun:
        chromium = begun.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@contextmanager
def tab(browser: Any, **options: Any) -> Iterator[Any]:
    """A tab with a profile of its own in which nothing may go wrong unseen."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    yield page
    context.close()
    assert wrong == []


FAKES = ("policy.backend=fake", "policy.model=fake", "train.backend=fake", "train.prompt_distillation.enabled=false")


@contextmanager
def up(folder: Path, *sets: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command `up` in a process of its own, with some settings; the page's address as it is printed."""
    common = ("judge.kind=rules", "run.poll=0.02", "train.batch_size=1", "store.sync=normal", "run.log_level=error")
    command = [sys.executable, "-m", "openclaw_rl", "up", "--port", "0", "--run-dir", str(folder)]
    command += [word for one in (*common, "monitor.mode=off", *sets) for word in ("--set", one)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENCLAW")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**clean, **environment})
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("page "):
            break
    else:
        raise AssertionError("".join(said))
    try:
        yield line.split()[-1].rstrip("/"), process
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 0, rest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, int]]:
    """One run for both stories of a whole system: its directory, the page's address, the process."""
    folder = tmp_path_factory.mktemp("run")
    with up(folder, *FAKES) as (address, process):
        yield folder, address, process.pid


def follow(page: Any, name: str) -> None:
    """Click a link and wait for its page with its scripts, without which its buttons do nothing."""
    with page.expect_navigation():
        page.get_by_role("link", name=name).first.click()


def say(page: Any, words: str) -> Any:
    """Send a message as a person does; the reply, once it is whole."""
    replies = page.locator("article.reply:not(.coming)")
    before = replies.count()
    page.get_by_label("Your message").fill(words)
    page.keyboard.press("Enter")
    playwright.expect(replies).to_have_count(before + 1, timeout=MODEL)
    return replies.last


def test_talk_correct_see_it_learned_and_roll_back(browser: Any, run: tuple[Path, str, int]) -> None:
    expect = playwright.expect
    folder, address, _ = run
    with tab(browser) as page:
        page.goto(address)
        reply = say(page, "Tell me about tea")
        expect(reply).to_contain_text("You said: Tell me about tea")
        expect(reply).to_contain_text("version 0")
        say(page, SENTENCE)
        expect(page.get_by_label("Notes", exact=True)).to_contain_text(RULE)

        follow(page, "Learning")
        card = page.locator("article.card").first
        expect(card).to_contain_text(SENTENCE)
        expect(card).to_contain_text("version 1: served")
        expect(card).to_contain_text("before, version 0")
        card.get_by_role("button", name="now").click()
        expect(card.locator(".answered")).to_contain_text(f"[learned: {RULE}]")

        follow(page, "Versions")
        expect(page.locator(".versions li.live")).to_contain_text("Version 1")
        page.get_by_role("button", name="Roll back").click()
        page.get_by_role("dialog").get_by_role("textbox").fill("I liked it better before")
        page.get_by_role("dialog").get_by_role("button", name="Send").click()
        expect(page.locator(".versions li.live")).to_contain_text("Version 2")
        with LedgerReader(folder / "ledger.db") as ledger:
            assert ledger.version(2).adapter is None, "the base model's weights again"
            assert "I liked it better before (by local)" in ledger.history(2)[0].reason

        follow(page, "Sessions")
        page.get_by_role("searchbox").fill("about tea")
        page.keyboard.press("Enter")
        page.locator(".sessions a").first.click()
        follow(page, "details")
        expect(page.locator(".tokens .t").first).to_be_visible()
        assert "".join(page.locator(".tokens .t").all_inner_texts()).startswith("You said: Tell me about tea")


def test_a_button_that_is_being_pressed_is_not_replaced(browser: Any, run: tuple[Path, str, int]) -> None:
    _, address, _ = run

    def changed(route: Any) -> None:
        found = route.fetch()
        route.fulfill(response=found, body=found.text().replace("before, version", "Before, version"))

    with tab(browser) as page:
        page.goto(address)
        say(page, "Tell me about snow")
        say(page, SENTENCE)
        follow(page, "Learning")
        card = page.locator("article.card").first
        playwright.expect(card).to_contain_text("before, version")
        button = card.get_by_role("button", name="now")
        button.hover()
        page.mouse.down()
        page.route(page.url, changed)
        for _ in range(2):  # what the first of them brings has been put in, or left, when the second comes
            page.wait_for_event("requestfinished", lambda request: request.url == page.url)
        page.mouse.up()
        playwright.expect(card.locator(".answered")).to_contain_text("now, version")
        page.unroute_all(behavior="ignoreErrors")


def test_an_edit_is_feedback_and_a_page_that_is_killed_disturbs_no_reply(
    browser: Any, run: tuple[Path, str, int]
) -> None:
    folder, address, process = run
    with tab(browser) as page:
        page.goto(f"{address}/talk")
        reply = say(page, "What is rain?")
        reply.get_by_role("button", name="This is how I would have liked it").click()
        page.get_by_label("This is how I would have liked it", exact=True).last.fill("Water that falls.")
        page.get_by_role("button", name="Teach this").click()
        playwright.expect(page.locator(".toast")).to_contain_text("Noted")
        with LedgerReader(folder / "ledger.db") as ledger:
            turn = ledger.latest_turns("local", session=None, limit=1)[-1]
            assert [one.edit for one in ledger.feedback(turn.id)] == ["Water that falls."]
    os.kill(_page_process(process), signal.SIGKILL)
    kept = json.loads((folder / "server.json").read_text())
    body = {"model": "fake", "messages": [{"role": "user", "content": "still there?"}]}
    url = f"http://127.0.0.1:{kept['port']}/v1/chat/completions"
    answer = httpx2.post(url, json=body, timeout=30, verify=False).json()
    assert answer["choices"][0]["message"]["content"].startswith("You said: still there?")


def test_the_embedded_model_is_corrected_learns_it_and_is_rolled_back(
    browser: Any,
    tmp_path: Path,
    embedded: Path,  # noqa: F811
) -> None:
    """Real weights in a real browser: one correction is obeyed at once, becomes a step and a version, and is undone."""
    expect = playwright.expect
    sets = ["policy.backend=local", "policy.model=embedded", "policy.device=cpu", "policy.sampling.max_tokens=48"]
    sets += ["policy.max_batch=16", "train.backend=local", "train.local.device=cpu", "train.method=topk"]
    sets += ["train.lora.enabled=true", "train.lora.rank=16", "train.optim.lr=7e-4", "train.train_truncated=true"]
    sets += ["gate.probes=4", "gate.replays=2", "gate.tokens=32", "train.prompt_distillation.enabled=false"]
    environment = {"OPENCLAW_RL_CACHE": str(embedded), "OMP_NUM_THREADS": "2"}
    with up(tmp_path, *sets, **environment) as (address, _), tab(browser) as page:
        page.goto(address)
        first = say(page, "What is tea?")
        expect(first).to_contain_text("version 0")
        say(page, SENTENCE)
        expect(page.get_by_label("Notes", exact=True)).to_contain_text(RULE)

        follow(page, "Learning")
        card = page.locator("article.card").first
        expect(card).to_contain_text(SENTENCE)
        expect(card).to_contain_text(RULE)
        expect(card).to_contain_text("Step 1", timeout=MODEL)
        expect(card).to_contain_text("version 1: served", timeout=MODEL)
        expect(card).to_contain_text("before, version 0")
        card.get_by_role("button", name="now").click()
        expect(card.locator(".answered")).to_contain_text("now, version 1", timeout=MODEL)

        follow(page, "Versions")
        expect(page.locator(".versions li.live")).to_contain_text("Version 1")
        page.get_by_role("button", name="Roll back").click()
        page.get_by_role("dialog").get_by_role("button", name="Send").click()
        expect(page.locator(".versions li.live")).to_contain_text("Version 2", timeout=MODEL)
        follow(page, "Talk")
        expect(say(page, "What is rain?")).to_contain_text("version 2")
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        assert ledger.step(1).metrics["loss"] != 0.0
        assert Path(str(ledger.version(1).adapter)).is_dir()
        assert ledger.version(2).adapter is None, "the base model's weights again"


def _page_process(parent: int) -> int:
    """The child of a process that serves the page."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat, line = (entry / "stat").read_text(), (entry / "cmdline").read_text()
            except OSError:
                continue
            if stat.rpartition(")")[2].split()[1] == str(parent) and "app.page" in line:
                return int(entry.name)
    raise AssertionError("no page runs beside it")


@contextmanager
def served(folder: Path, policy: FakePolicy, keys: dict[str, str] | None = None) -> Iterator[str]:
    """The API over a policy and the page over it, on free ports; the page's address."""
    path = folder / "ledger.db"
    with ServeLedger(path, sync="normal") as ledger, listening(fake_api(policy, ledger, keys=keys or {})) as api:

        def client(key: str | None) -> ApiClient:
            return ApiClient(f"{api}/v1", key=key)

        door = Door(keys or {}, admins=())
        site = Site(ledger=lambda: LedgerReader(path), api=client, door=door, alarms=lambda _: [])
        with listening(build_site(site)) as page:
            yield page


class LongWinded(FakePolicy):
    """Says a long text in few pieces, as fast as it can be sent."""

    async def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        for at in range(0, len(HOSTILE), 50_000):
            yield Delta(text=HOSTILE[at : at + 50_000], pieces=())
        yield make_completion(HOSTILE, sampling=sampling)


def test_a_hostile_reply_does_nothing_and_leads_nowhere(browser: Any, tmp_path: Path) -> None:
    asked: list[str] = []
    with served(tmp_path, LongWinded()) as address, tab(browser) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{address}/talk")
        reply = say(page, "Be evil")
        playwright.expect(reply).to_contain_text("<script>document.title")
        _nothing_lives(page, reply)
        page.reload()
        reply = page.locator("article.reply").last
        playwright.expect(reply).to_contain_text("<script>document.title")
        _nothing_lives(page, reply)
        assert [url for url in asked if not url.startswith((address, "data:"))] == []


def _nothing_lives(page: Any, reply: Any) -> None:
    assert page.title() == "Talk · OpenClaw-RL"
    assert reply.locator("script, img, iframe, style").count() == 0
    assert reply.locator("a").count() == 0, "of a text so long the beginning is shown as it is"
    playwright.expect(reply.get_by_role("button", name="characters more")).to_be_visible()


def test_markdown_is_laid_out_and_links_lead_to_the_web_alone(browser: Any, tmp_path: Path) -> None:
    short = (
        HOSTILE.rstrip("x")
        + "**bold** `code`\n\n```python\nprint('<b>')\n```\n\n1. one\n2. two\n\n| a | b |\n|---|---|\n| 1 | <i> |\n"
    )
    with served(tmp_path, FakePolicy(reply=short, chunk=7)) as address, tab(browser) as page:
        page.goto(f"{address}/talk")
        reply = say(page, "Show me")
        links = [link.get_attribute("href") for link in reply.locator("a").all()]
        assert links == ["https://example.org/", "http://127.0.0.1:9/beacon"], "to be clicked, and not loaded"
        assert reply.locator("script, img, iframe, b, i").count() == 0
        found = {tag: reply.locator(tag).first.inner_text() for tag in ("strong", "pre code", "li", "td")}
        assert found == {"strong": "bold", "pre code": "print('<b>')", "li": "one", "td": "1"}
        assert page.title() == "Talk · OpenClaw-RL"


def test_two_users_log_in_and_do_not_see_each_other(browser: Any, tmp_path: Path) -> None:
    keys = {"key-ann": "ann", "key-bob": "bob"}
    with served(tmp_path, FakePolicy(), keys) as address:
        for key, words in (("key-ann", "the secret of ann"), ("key-bob", "the secret of bob")):
            with tab(browser) as page:
                _log_in(page, address, key)
                say(page, words)
        with tab(browser) as page:
            _log_in(page, address, "key-ann")
            page.goto(f"{address}/sessions")
            playwright.expect(page.locator(".sessions")).to_contain_text("the secret of ann")
            assert "bob" not in page.content()


def test_a_search_waits_for_no_script(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, FakePolicy()) as address, tab(browser) as page:
        page.goto(f"{address}/talk")
        say(page, "the price of tea")
        with tab(browser, java_script_enabled=False) as plain:
            plain.goto(f"{address}/sessions")
            for words, shown in (("rockets", "Nothing found"), ("tea", "the price of tea")):
                plain.get_by_role("searchbox").fill(words)
                plain.keyboard.press("Enter")
                playwright.expect(plain.locator("main")).to_contain_text(shown)


def _log_in(page: Any, address: str, key: str) -> None:
    """Without the form: its 401 is an error to the browser's console."""
    token = page.request.post(f"{address}/do/login", data=json.dumps({"key": key}), headers={"x-openclaw-page": "1"})
    assert token.ok
    page.goto(f"{address}/talk")


def test_a_wrong_key_is_refused_at_the_door_and_the_right_one_opens_it(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, FakePolicy(), {"key-ann": "ann"}) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{address}/learning")
        for key, shown in (("nope", "this key is not known"), ("key-ann", "No correction yet")):
            page.get_by_label("Key").fill(key)
            page.keyboard.press("Enter")
            playwright.expect(page.locator("main")).to_contain_text(shown)
        page.get_by_role("button", name="Log out").click()
        playwright.expect(page.get_by_label("Key")).to_be_visible()
        context.close()


def test_a_phone_shows_every_view_without_scrolling_sideways(browser: Any, tmp_path: Path) -> None:
    phone = {"viewport": {"width": 360, "height": 740}}
    with served(tmp_path, FakePolicy()) as address:
        context = browser.new_context(**phone)
        page = context.new_page()
        page.goto(f"{address}/talk")
        say(page, "w" * 300)
        for view in ("talk", "learning", "versions", "curves", "environments", "sessions"):
            page.goto(f"{address}/{view}")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 360, f"{view} is {wide} wide"
        context.close()
