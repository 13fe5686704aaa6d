#!/bin/sh
# Serves Qwen3 4b (or MODEL_PATH) and trains it by scores and hints, an adapter; see docs/coming-from.md.
exec "$(dirname "$0")/_up.sh" run_qwen3_4b_lora_openclaw_combine qwen3-4b,combine,lora "$@"
