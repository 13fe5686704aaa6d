"""Which notes go into a prompt: within their tokens, rules before facts, facts only where they matter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.errors import BackendDown
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.notes.prompting import NotePrompter
from openclaw_rl.preferences.wording import wording
from openclaw_rl.serve.redact import redact_turn
from openclaw_rl.store import NotesLedger
from openclaw_rl.testing import make_message, make_turn
from openclaw_rl.types import Message, NoteKind, Prompt, PromptNote, ToolCall


@pytest.fixture
def book(tmp_path: Path) -> Iterator[NotesBook]:
    with NotesLedger(tmp_path / "ledger.db") as ledger:
        yield NotesBook(ledger)


def tell(book: NotesBook, text: str, kind: NoteKind = "rule") -> None:
    book.add(NewNote(user="ann", text=text, kind=kind, by="user", reason="by hand"))


async def words(text: str) -> int:
    return len(text.split())


async def note(book: NotesBook, request: str, *, max_tokens: int = 100, max_facts: int = 5) -> str | None:
    prompter = NotePrompter(book, max_tokens=max_tokens, max_facts=max_facts, count=words)
    found = await prompter.note_for("ann", Prompt(messages=(make_message("user", request),)))
    return None if found is None else found.text


async def test_facts_go_with_the_question_and_rules_end_the_message(book: NotesBook) -> None:
    tell(book, "I am vegetarian", "fact")
    tell(book, "Use metric units.")
    tell(book, "Answer in one sentence.")
    assert await note(book, "What shall I cook?") == "I am vegetarian. Use metric units. Please answer in one sentence."


async def test_a_fact_goes_in_where_it_is_about_the_user_or_what_is_asked(book: NotesBook) -> None:
    tell(book, "The file is b.txt.", "fact")
    tell(book, "My dog is called Rex.", "fact")
    assert await note(book, "Who painted the Mona Lisa?") == "My dog is called Rex."
    assert await note(book, "Open the file, please.") == "The file is b.txt. My dog is called Rex."
    assert await note(book, "Open the file, please.", max_facts=1) == "My dog is called Rex."


async def test_what_does_not_fit_is_left_out_the_oldest_first(book: NotesBook) -> None:
    tell(book, "Use metric units.")  # three words
    tell(book, "Answer in one sentence.")  # five, as it is put: "Please answer in one sentence."
    tell(book, "I am vegetarian.", "fact")
    both = "Use metric units. Please answer in one sentence."
    assert await note(book, "hello", max_tokens=11) == f"I am vegetarian. {both}"
    assert await note(book, "hello", max_tokens=8) == both
    assert await note(book, "hello", max_tokens=5) == "Please answer in one sentence."
    assert await note(book, "hello", max_tokens=2) is None


async def test_a_tokenizer_that_is_down_costs_the_note_and_no_reply(book: NotesBook) -> None:
    async def down(_text: str) -> int:
        raise BackendDown("restarting", retry_after=1.0)

    tell(book, "Use metric units.")
    prompt = Prompt(messages=(make_message("user", "hello"),))
    prompter = NotePrompter(book, max_tokens=100, max_facts=5, count=down)
    assert await prompter.note_for("ann", prompt) is None


async def test_neither_an_environment_nor_a_prompt_without_a_user_gets_notes(book: NotesBook) -> None:
    tell(book, "Use metric units.")
    prompter = NotePrompter(book, max_tokens=100, max_facts=5, count=words)
    assert await prompter.note_for("ann", Prompt(messages=(make_message("system", "hello"),))) is None
    assert await prompter.note_for("env:terminal", Prompt(messages=(make_message("user", "hello"),))) is None


async def test_what_is_served_is_what_the_teacher_gets(book: NotesBook) -> None:
    """One place and one wording: distillation pulls towards the very prompt that is served."""
    tell(book, "shorter answers please")
    prompter = NotePrompter(book, max_tokens=100, max_facts=5, count=words)
    asked = Prompt(messages=(make_message("user", "What is tea?"),))
    found = await prompter.note_for("ann", asked)
    turn = make_turn("x", prompt=asked, noted=found)
    assert turn.sent.messages[-1].content == "What is tea?\n\nPlease answer in under 30 words."
    assert turn.sent == asked.hinted(wording("shorter answers please"))


def test_the_note_stands_after_the_last_user_message_alone() -> None:
    prompt = Prompt(messages=tuple(make_message(role, role) for role in ("system", "user", "assistant", "user")))
    sent = [message.content for message in prompt.hinted("Be brief.").messages]
    assert sent == ["system", "user", "assistant", "user\n\nBe brief."]


def test_in_a_tool_loop_the_note_stays_where_it_was_when_the_tool_was_called() -> None:
    """So every request of the loop begins with the tokens of the one before, and no cached prefix is lost."""
    call = Message(role="assistant", tool_calls=(ToolCall(id="1", name="ls", arguments="{}"),))
    asked = (make_message("system", "You are an agent."), make_message("user", "Which files are there?"))
    first, second = (Prompt(messages=(*asked, *then)).hinted("Be brief.") for then in ((), (call, _result())))
    assert second.messages[:2] == first.messages
    assert [message.role for message in second.messages] == ["system", "user", "assistant", "tool"]
    assert second.messages[-1].content == "a.txt"


def _result() -> Message:
    return Message(role="tool", content="a.txt", tool_call_id="1")


def test_a_message_of_pictures_alone_gets_the_note_as_its_text() -> None:
    picture = Message(role="user", images=("data:image/png;base64,AA==",))
    (sent,) = Prompt(messages=(picture,)).hinted("Be brief.").messages
    assert (sent.content, sent.images) == ("Be brief.", picture.images)


def test_what_is_to_be_hidden_is_hidden_in_the_note_too() -> None:
    turn = make_turn("hello", noted=PromptNote(text="My key is hunter2.", notes=(1,)))
    kept = redact_turn(turn, lambda text: text.replace("hunter2", "[SECRET]"))
    assert kept.noted == PromptNote(text="My key is [SECRET].", notes=(1,))
    assert (kept.trainable, kept.completion.reply_tokens) == (False, ())
