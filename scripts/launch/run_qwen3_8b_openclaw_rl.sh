#!/bin/sh
# Serves Qwen3 8b (or MODEL_PATH) and trains it by binary RL, every weight; see docs/coming-from.md.
exec "$(dirname "$0")/_up.sh" run_qwen3_8b_openclaw_rl qwen3-8b,binary,full-tune "$@"
