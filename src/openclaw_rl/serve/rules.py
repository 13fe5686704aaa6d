"""What the settings decide for one server, grouped by what they decide. Only ``app`` fills these."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from openclaw_rl.formats.reply_parser import Reasoning
from openclaw_rl.ports import ConversationReader, Generate
from openclaw_rl.serve.redact import Redact
from openclaw_rl.types import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Who may use the API: decided by a request's headers, before its body is read.

    ``keys`` maps each key to its user; without any, everybody is one user and only loopback names are answered.
    ``own_keys`` does so for the environments that this process runs. ``admins`` may control the run.
    """

    keys: Mapping[str, str]
    own_keys: Mapping[str, str]
    admins: Collection[str]
    cors_origins: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRules:
    """How a request becomes a reply.

    ``defaults`` is how replies are sampled where a request does not say; ``any_model`` answers unknown model names too;
    ``generate``, where there is one, stands between the API and the policy.
    """

    model_name: str
    any_model: bool
    defaults: Sampling
    reasoning: Reasoning
    generate: Generate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutrightRules:
    """What is said outright of a reply: whether it is heard, and how long a text may be to be learned as a rule."""

    enabled: bool
    shortest: int
    longest: int
    reader: ConversationReader


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRules:
    """What is kept of an answered turn: decided when it is finished, apart from how it was answered.

    ``intercept`` False keeps nothing; ``optout_users`` are never trained on. ``shared``: other gateways answer too, so
    that what a session may be used for is asked of the ledger each time.
    """

    intercept: bool
    redact: Redact | None
    store_optouts: bool
    optout_users: Collection[str]
    shared: bool
