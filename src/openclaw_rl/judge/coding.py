"""Signs beside the words in a coding conversation: errors after a claimed success, interrupts, undo, approvals. Pure.

Each sign moves the log-odds of bad news by the logarithm of its likelihood ratio. The counts are from the lines shipped
with the package and from 111 messages by real people; those for interrupts, from 19 real ones. Since they are few,
`DRAWN` messages at the base rate are added to each. No sign is trusted alone: without a model's odds it scores nothing.
"""
# ruff: noqa: E501  (each pattern stays on one line)

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from openclaw_rl.judge.base_rate import Odds
from openclaw_rl.judge.text import stretches_of
from openclaw_rl.ports import Case

MOST = 2.0
"""bound on the change in log-odds by all signs together, in nats"""
BASE = 0.38
"""share of complaints in the coding conversations used for the counts"""
DRAWN = 6
"""messages at the base rate that are added to each count"""
_READ = 20_000  # characters of a message that are searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A sign: ``bad`` complaints among ``seen`` messages that show it."""

    name: str
    bad: int
    seen: int

    @property
    def precision(self) -> float:
        """Return the share of complaints among messages with this sign, shrunk towards the base rate."""
        return (self.bad + DRAWN * BASE) / (self.seen + DRAWN)

    @property
    def weight(self) -> float:
        """Return the logarithm of the likelihood ratio."""
        share = self.precision
        return math.log(share / (1 - share)) - math.log(BASE / (1 - BASE))


ERROR = Sign(name="an error is pasted after a reply that claims success", bad=5, seen=5)
FAILING = Sign(name="tests fail after a reply that claims success", bad=1, seen=1)
UNDO = Sign(name="the user undoes it", bad=2, seen=2)
INTERRUPT = Sign(name="the user interrupted", bad=10, seen=19)
APPROVAL = Sign(name="an approval, a choice or an order to go on", bad=0, seen=12)
NOTICE = Sign(name="a notification that a client wrote", bad=0, seen=1)

_ERROR = re.compile(
    r"^Traceback \(most recent|^[\w.]*(?:Error|Exception)\b ?:|^[ \t]*error(?:\[\w+\]|:)|: (?:fatal )?error[: ]|npm (?:ERR!|error)|\b[45]\d\d (?:Not Found|Internal Server Error|Bad Gateway)"
    r"|\bERROR:|segmentation fault|command not found|panicked at|SQLSTATE|Unhandled\w{0,40}Rejection",
    re.IGNORECASE | re.MULTILINE,
)
_FAILING = re.compile(
    r"^FAILED \S|^--- FAIL|\b[1-9]\d* (?:failed|failing)\b|Tests?:\s+[1-9]\d* failed|FAILURES!", re.MULTILINE
)
_CLAIM = re.compile(
    r"\b(?:done|fixed|added|created|updated|implemented|installed|converted|renamed|moved|removed|refactored|deployed|now works?|should (?:now )?(?:work|be)"
    r"|successfully|all tests pass|tests? pass|is (?:now )?(?:fixed|done|complete)|compiles)\b|✅",
    re.IGNORECASE,
)
_ASKS_OUTPUT = re.compile(
    r"\b(?:run|execute|try)\b[^.\n]{0,80}\b(?:paste|send|tell|show|share|report)\b|\b(?:paste|send me|show me|share)\b[^.\n]{0,40}\b(?:output|log|error|result|trace)",
    re.IGNORECASE,
)
_UNDO = re.compile(
    r"\A\s*/(?:undo|rewind|revert)\b|\b(?:undo|revert|roll(?:ed)? ?back|put (?:it|that|this) back|restore)\b[^.\n]{0,40}\b(?:that|this|it|your|the change|changes|last)\b|\bgit (?:revert|reset --hard|checkout --)",
    re.IGNORECASE,
)
_INTERRUPT = re.compile(
    r"\[Request interrupted by user|\bThe user (?:cancelled|interrupted|rejected)\b|<turn_aborted>", re.IGNORECASE
)
_APPROVAL = re.compile(
    r"\A\W*(?:(?:yes|yep|yeah|ok(?:ay)?|sure|please|y|go ahead|do it|do that|apply (?:it|that|this)|continue|proceed|go on|next(?: step)?|keep going|approved?|option [\da-d]|[\da-d1-9]"
    r"|commit(?: (?:and push|it|this|that))?|push(?: it)?|all|both|sim|pode|segue|continua|weiter|ja|mach das|oui|vas-y|sí|si|dale|sigue|继续|好的?|可以|是的?)(?!\w)[\s,.!]*){1,4}\Z",
    re.IGNORECASE,
)
_NOTICE = re.compile(
    r"\A\s*<(?:task-notification|system-reminder|command-name|local-command-stdout|environment_details)\b|\A\s*\[(?:SYSTEM|Automated)",
    re.IGNORECASE,
)


def signs_of(case: Case) -> tuple[Sign, ...]:
    """Return the signs of a case in a coding conversation."""
    message = "\n\n".join(item.content for item in case.outcome.next_state if item.role == "user")[:_READ]
    return signs_in(message, case.turn.completion.reply.content)


def signs_in(message: str, reply: str) -> tuple[Sign, ...]:
    """Return the signs of a message after a reply; output that the assistant requested is no failure."""
    if _NOTICE.search(message):
        return (NOTICE,)
    if _APPROVAL.match(message):
        return (APPROVAL,)
    pasted = "\n".join(part.text for part in stretches_of(message) if part.pasted) or message
    claimed = bool(_CLAIM.search(reply)) and not _ASKS_OUTPUT.search(reply[-600:])
    failing = claimed and bool(_FAILING.search(pasted))
    checks = (
        (FAILING, failing),
        (ERROR, claimed and not failing and bool(_ERROR.search(pasted))),
        (UNDO, bool(_UNDO.search(message))),
        (INTERRUPT, bool(_INTERRUPT.search(message))),
    )
    return tuple(sign for sign, there in checks if there)


def combined(odds: Odds, signs: Iterable[Sign]) -> Odds:
    """Return the odds moved by the weights of all signs, bounded by `MOST`."""
    by = sum(sign.weight for sign in signs)
    return odds.moved(max(-MOST, min(MOST, by))) if by else odds
