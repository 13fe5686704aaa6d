"""OpenClaw-RL."""
