#!/bin/sh
# Serves Qwen3 7b (or MODEL_PATH) and trains it by GRPO and top-k distillation, an adapter; see docs/coming-from.md.
exec "$(dirname "$0")/_up.sh" run_qwen3_7b_lora_openclaw_topk_select qwen3-7b,topk-select,lora "$@"
