"""Run ``openclaw-rl`` as ``python -m openclaw_rl``."""

from openclaw_rl.cli import main

main()
