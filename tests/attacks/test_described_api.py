"""Everything that the published description allows or forbids, against a whole API over a real ledger."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from openclaw_rl.app.control import delete_session, submit_control
from openclaw_rl.notes import NotesBook
from openclaw_rl.serve.notes import StandingNotes
from openclaw_rl.serve.openapi import description
from openclaw_rl.serve.redact import patterns
from openclaw_rl.store import NotesLedger, ServeLedger, TrainLedger
from openclaw_rl.testing import RunningServer, serving
from openclaw_rl.types import Version

pytestmark = pytest.mark.slow

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DESCRIBED = schemathesis.openapi.from_dict(description("toy"))
OPERATIONS = [result.ok() for result in DESCRIBED.get_all_operations()]
MODES = schemathesis.GenerationMode
CASES = [(operation, MODES.POSITIVE) for operation in OPERATIONS]
CASES += [(operation, MODES.NEGATIVE) for operation in OPERATIONS if operation.body]
SESSION = "agent:main/what is it"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The API with everything that it may have: notes, control, deletion, redaction."""
    place: Path = tmp_path_factory.mktemp("described") / "ledger.db"
    with (
        ServeLedger(place, sync="normal") as ledger,
        TrainLedger(place, sync="normal") as train,
        NotesLedger(place) as notes,
        serving(
            ledger=ledger,
            notes=StandingNotes(book=NotesBook(notes), prompter=None),
            control=partial(submit_control, place),
            delete=partial(delete_session, place),
            redact=patterns,
        ) as server,
    ):
        train.add_version(Version(number=0, parent=None, base="b", state="live"))
        yield server


def known(server: RunningServer, operation: Any) -> dict[str, Any]:
    """Path parameters that name a turn, a session or a note that is there."""
    if "{number}" in operation.path:
        return {"number": server.post("/v1/notes", {"text": "Answer in one sentence."}).json()["number"]}
    if "/turns/" in operation.path:
        return {"id": server.chat().headers["x-openclaw-rl-turn"]}
    if "/sessions/" in operation.path:
        server.chat(headers={"x-session-id": SESSION})
        return {"id": SESSION}
    return {"id": "toy"}


@pytest.mark.parametrize(("operation", "mode"), CASES, ids=[f"{mode.value} {each.label}" for each, mode in CASES])
def test_no_request_of_any_kind_makes_a_whole_api_fail(server: RunningServer, operation: Any, mode: Any) -> None:
    @settings(
        max_examples=6,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=operation.as_strategy(generation_mode=mode), there=st.booleans())
    def fuzz(case: Any, there: bool) -> None:
        if there and operation.path_parameters:
            case.path_parameters = known(server, operation)
        answer = case.call(base_url=server.url, timeout=20)
        case.validate_response(answer, checks=CHECKS)
        assert answer.status_code < 500

    fuzz()


def test_the_fuzzed_api_still_answers_and_its_ledger_is_whole(server: RunningServer) -> None:
    assert server.chat().status_code == 200
    assert server.ledger.check() == []
