"""A generate function of your own: every prompt gets a house rule before the policy sees it.

    openclaw-rl up --custom-generate-function-path examples/custom_generate.py:with_house_rule

It stands between the API and the policy and returns the policy's stream, so tokens stay exact: what is kept for
training is the prompt as the policy saw it.
"""

from __future__ import annotations

from dataclasses import replace

from openclaw_rl.ports import Policy, Stream
from openclaw_rl.types import Message, Prompt, Sampling

RULE = Message(role="system", content="House rule: answer in plain words.")


def with_house_rule(policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream:
    """The policy's own stream for the prompt with the rule in front."""
    return policy.generate(replace(prompt, messages=(RULE, *prompt.messages)), sampling, version=version)
