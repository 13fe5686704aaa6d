"""A generate function that ends a reply with its first sentence.

The embedded model rambles on long prompts, and agents go on by themselves, or give up, after a reply that was cut by
its token limit. Everything else is as the policy does it: the tokens are those that were sampled.
"""

from __future__ import annotations

from dataclasses import replace

from openclaw_rl.ports import Policy, Stream
from openclaw_rl.types import Prompt, Sampling


def generate(policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream:
    return policy.generate(prompt, replace(sampling, stop=(*sampling.stop, ".", "\n\n")), version=version)
