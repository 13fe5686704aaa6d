#!/bin/sh
# Serves Qwen3 8b (or MODEL_PATH) and trains it by on-policy distillation, an adapter; see docs/coming-from.md.
exec "$(dirname "$0")/_up.sh" run_qwen3_8b_lora_openclaw_opd qwen3-8b,opd,lora "$@"
