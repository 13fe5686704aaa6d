#!/bin/sh
# Serves Qwen3 8b (or MODEL_PATH) and trains it by GRPO and top-k distillation, every weight; see docs/coming-from.md.
exec "$(dirname "$0")/_up.sh" run_qwen3_8b_openclaw_topk_select qwen3-8b,topk-select,full-tune "$@"
