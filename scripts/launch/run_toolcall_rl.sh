#!/bin/sh
# Serves a model and trains it in the toolcall environment; see docs/coming-from.md.
ENV_TYPE=${ENV_TYPE:-toolcall} exec "$(dirname "$0")/_up.sh" run_toolcall_rl qwen3-4b,lora,env "$@"
