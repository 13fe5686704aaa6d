#!/bin/sh
# Serves Qwen3 8b (or MODEL_PATH) and trains it by scores and hints, every weight; see docs/coming-from.md.
exec "$(dirname "$0")/_up.sh" run_qwen3_8b_openclaw_combine qwen3-8b,combine,full-tune "$@"
