"""A rollout of your own: run a task, but stop as soon as the environment has given any reward.

    openclaw-rl up --set env.type=examples/custom_env.py --num-rollouts-per-prompt 4 \\
        --rollout-function-path examples/custom_rollout.py:until_first_reward

A rollout talks to the policy through the public API (``chat``), like any client; what it earns is paid to its session.
Each episode is a session of its own, also where one task is played several times: ``group`` is what joins those.
"""

from __future__ import annotations

from dataclasses import replace

from openclaw_rl.ports import ChatClient, Env
from openclaw_rl.types import new_id


async def until_first_reward(
    env: Env, chat: ChatClient, *, task: str, seed: int, group: str | None, max_steps: int
) -> float:
    """The first reward that is not zero, 0 if none came within ``max_steps``."""
    prompt = await env.reset(task, seed=seed)
    session = f"{env.name}-{new_id()}"
    for _ in range(max_steps):
        reply = await chat.ask(prompt, session=session, group=group)
        seen = await env.step(reply.message)
        if seen.reward:
            await chat.reward(session, score=seen.reward)
            return seen.reward
        if seen.done:
            break
        prompt = replace(prompt, messages=(*prompt.messages, reply.message, *seen.messages))
    await chat.reward(session, score=0.0)
    return 0.0
