#!/bin/sh
# Serves Qwen3 7b (or MODEL_PATH) and trains it by on-policy distillation, an adapter; see docs/coming-from.md.
exec "$(dirname "$0")/_up.sh" run_qwen3_7b_lora_openclaw_opd qwen3-7b,opd,lora "$@"
