#!/bin/sh
# Evaluates a version, weights or a server: --model-path PATH --eval-tasks "conversation,coding,tool-use".
exec "$(dirname "$0")/_openclaw-rl.sh" eval "$@"
