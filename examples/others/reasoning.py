"""A generator of reasoning-gym (pip install reasoning-gym) as it is: one question, one answer, its own score.

openclaw-rl up --env gymnasium --set env.options.id=examples/others/reasoning.py:Questions
"""

from typing import Any

from gymnasium import Env, spaces


class Questions(Env[str, str]):  # type: ignore[misc, unused-ignore]  # where gymnasium is not installed
    observation_space, action_space = spaces.Text(100_000), spaces.Text(10_000)
    return_range = (0.0, 1.0)

    def __init__(self, generator: str = "chain_sum") -> None:
        import reasoning_gym

        self._questions = reasoning_gym.create_dataset(generator, seed=7, size=1 << 16)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._asked = self._questions[seed or 0]
        return str(self._asked["question"]), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(self._questions.score_answer(answer=action, entry=self._asked)), True, False, {}
