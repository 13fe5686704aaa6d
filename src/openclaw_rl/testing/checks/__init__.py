"""Check that a plugin fulfils its port's contract: one check per kind, for a plugin's own tests.

    from openclaw_rl.testing import check_judge

    def test_my_judge():
        check_judge(MyJudge())

A check starts the plugin, tries it on small cases, and stops it. It raises AssertionError that lists every broken
promise, one per line.
"""

from __future__ import annotations

from openclaw_rl.testing.checks.env import check_env, check_rollout
from openclaw_rl.testing.checks.policy import check_generate, check_policy
from openclaw_rl.testing.checks.trainer import check_judge, check_loss, check_trainer

__all__ = [
    "check_env",
    "check_generate",
    "check_judge",
    "check_loss",
    "check_policy",
    "check_rollout",
    "check_trainer",
]
