#!/bin/sh
# Serves a model and trains it in the swe environment; see docs/coming-from.md.
ENV_TYPE=${ENV_TYPE:-swe} exec "$(dirname "$0")/_up.sh" run_swe_rl qwen3-4b,lora,env "$@"
