#!/bin/sh
# Serves a model and trains it in the terminal environment; see docs/coming-from.md.
ENV_TYPE=${ENV_TYPE:-terminal} exec "$(dirname "$0")/_up.sh" run_terminal_rl qwen3-4b,lora,env "$@"
