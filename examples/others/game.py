"""A game of TextArena (pip install textarena) as it is: its texts are the observations, replies are the moves.

openclaw-rl up --env gymnasium --set env.options.id=examples/others/game.py:Game
"""

from typing import Any

from gymnasium import Env, spaces


class Game(Env[str, str]):  # type: ignore[misc, unused-ignore]  # where gymnasium is not installed
    observation_space, action_space = spaces.Text(100_000), spaces.Text(10_000)
    return_range = (0.0, 1.0)

    def __init__(self, game: str = "GuessTheNumber-v0") -> None:
        import textarena

        self._game = textarena.make(game)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._game.reset(num_players=1, seed=seed)
        return str(self._game.get_observation()[1]), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        over, _ = self._game.step(action=action)
        if over:
            return "The game is over.", float(self._game.close()[0][0]), True, False, {}
        return str(self._game.get_observation()[1]), 0.0, False, False, {}
