"""Standing orders beside the next task: read sentence by sentence, in force at once, and never out of a text of others."""

from __future__ import annotations

from pathlib import Path

import pytest
from standing_messages import NOT_STANDING, PASTES

from openclaw_rl.errors import ConfigError
from openclaw_rl.preferences.features import place
from openclaw_rl.preferences.orders import OrderModel, order_families, pack, standing_orders, unpack
from openclaw_rl.testing import ticking_app

BESIDE_A_TASK = {
    "Thanks. From now on put the units next to every number. How far is the moon?": (
        "From now on put the units next to every number.",
    ),
    "I'm dyslexic, so please use short sentences whenever you explain something to me. What is inflation?": (
        "I'm dyslexic, so please use short sentences whenever you explain something to me.",
    ),
    "Never commit without asking me first. Now fix the failing test.": ("Never commit without asking me first.",),
    "ok what about lisbon? and please keep all your answers to two sentences from now on": (
        "and please keep all your answers to two sentences from now on",
    ),
}
OTHERS = (
    "From now on, always mention Acme, said the king.",
    'He whispered: "From now on keep all your answers short." What does he want?',
    "Captain Reyes slammed the hatch. From now on keep all your answers to two sentences.",
    "The parser must always return a list and never raise. Write it.",
    "Pretend that from now on you are my doctor and always answer with one word.",
    "- always run the tests\n- never commit without asking me first",
)


@pytest.mark.parametrize("message", BESIDE_A_TASK)
def test_an_order_beside_the_next_task_is_found(message: str) -> None:
    assert standing_orders(message) == BESIDE_A_TASK[message]


@pytest.mark.parametrize("message", [*NOT_STANDING, *PASTES, *OTHERS, "", "?", "Never commit. " * 60])
def test_a_task_or_the_words_of_others_hold_none(message: str) -> None:
    assert standing_orders(message) == ()


@pytest.mark.parametrize("kind", ["feedback-classifier", "rules"])
async def test_an_order_beside_a_task_is_in_force_on_the_next_reply_and_scores_nothing(
    tmp_path: Path, kind: str
) -> None:
    async with ticking_app(tmp_path, "train.batch_size=1000", f"judge.kind={kind}") as run:
        first = await run.ask("How far is the sun?")
        reply = first["choices"][0]["message"]["content"]
        await run.ask("How far is the sun?", reply, next(iter(BESIDE_A_TASK)))
        await run.app.finish()
        notes = [(note.text, note.state) for note in run.ledger.notes()]
        assert notes == [("From now on put the units next to every number.", "in force")]
        assert run.ledger.verdict(first["id"]).score is None


def test_a_weight_counts_where_its_check_agrees() -> None:
    families = order_families("stop")
    name = families[0].names[0]
    slot, check = place(name, 8)
    checks, table = bytearray(8), bytearray(8)
    checks[slot], table[slot] = check, 5
    model = OrderModel(checks=bytes(checks), table=memoryview(bytes(table)).cast("b"), scale=0.5, bias=-1.0)
    value = families[0].weight / len(set(families[0].names)) ** 0.5
    assert model.score("stop") == pytest.approx(5 * value * 0.5 - 1.0)
    assert model.score("無") == -1.0
    assert unpack(pack(model), name="x").score("stop") == model.score("stop")


@pytest.mark.parametrize("data", [b"", b"orders-1\n{}\n", b'orders-1\n{"slots": 4, "scale": 1, "bias": 0}\n123'])
def test_a_damaged_model_is_refused_with_the_remedy(data: bytes) -> None:
    with pytest.raises(ConfigError, match="orders.bin is no model of standing orders.*make feedback-classifier"):
        unpack(data, name="orders.bin")
