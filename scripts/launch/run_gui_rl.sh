#!/bin/sh
# Serves a model and trains it in the gui environment; see docs/coming-from.md.
ENV_TYPE=${ENV_TYPE:-gui} exec "$(dirname "$0")/_up.sh" run_gui_rl qwen3-4b,lora,env "$@"
