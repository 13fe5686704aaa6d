"""What of the optimizer, AdamW, is no setting."""

from __future__ import annotations

from typing import Final

ADAM_EPS: Final = 1e-8
"""AdamW's own, which nobody needs to set"""
REHEARSAL_BETA1: Final = 0.5
"""a rehearsal is a few large steps: a longer memory of gradients would point where the policy no longer is"""
