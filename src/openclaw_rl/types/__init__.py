"""The nouns. Frozen, slotted, keyword-only; a wrong value cannot be built.

    Message, Tool -> Prompt --Sampling--> Completion -> Turn -> Outcome -> Verdict -> Sample -> Step, Version

Lengths: `[P]` prompt tokens, `[R]` reply tokens. Arrays that share a letter share a length.
Absent is ``None``; zero is a number: a missing log-prob is never ``0.0``.
"""

from __future__ import annotations

from openclaw_rl.types.messages import (
    Completion,
    Finish,
    Json,
    Message,
    Prompt,
    Role,
    Sampling,
    Tool,
    ToolCall,
    canonical,
    texts,
)
from openclaw_rl.types.notes import PROMPTED, Note, NoteAuthor, NoteChange, NoteKind, NoteState, PromptNote, Rehearsal
from openclaw_rl.types.training import (
    FIRST_DRAFT,
    Baseline,
    Command,
    ControlRequest,
    Sample,
    Step,
    Version,
    VersionOrigin,
    VersionState,
)
from openclaw_rl.types.turns import (
    ENVIRONMENT,
    Drop,
    DropReason,
    Ended,
    Feedback,
    Hint,
    HintKind,
    ImportRecord,
    JudgedTurn,
    Kind,
    Outcome,
    SessionEnd,
    Source,
    Turn,
    UnreadableTurn,
    Verdict,
    environment_of,
    new_id,
    rules,
)
from openclaw_rl.types.validation import Logprobs, Tokens

__all__ = [
    "ENVIRONMENT",
    "FIRST_DRAFT",
    "PROMPTED",
    "Baseline",
    "Command",
    "Completion",
    "ControlRequest",
    "Drop",
    "DropReason",
    "Ended",
    "Feedback",
    "Finish",
    "Hint",
    "HintKind",
    "ImportRecord",
    "Json",
    "JudgedTurn",
    "Kind",
    "Logprobs",
    "Message",
    "Note",
    "NoteAuthor",
    "NoteChange",
    "NoteKind",
    "NoteState",
    "Outcome",
    "Prompt",
    "PromptNote",
    "Rehearsal",
    "Role",
    "Sample",
    "Sampling",
    "SessionEnd",
    "Source",
    "Step",
    "Tokens",
    "Tool",
    "ToolCall",
    "Turn",
    "UnreadableTurn",
    "Verdict",
    "Version",
    "VersionOrigin",
    "VersionState",
    "canonical",
    "environment_of",
    "new_id",
    "rules",
    "texts",
]
