#!/bin/sh
# Serves Qwen3 4b (or MODEL_PATH) and trains it by on-policy distillation, every weight; see docs/coming-from.md.
exec "$(dirname "$0")/_up.sh" run_qwen3_4b_openclaw_opd qwen3-4b,opd,full-tune "$@"
