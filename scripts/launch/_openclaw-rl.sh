#!/bin/sh
# The command openclaw-rl: with $PYTHON, else of this checkout's environment, else as it is installed.
set -eu

root=$(cd -P "$(dirname "$0")" && cd ../.. && pwd)
if [ -n "${PYTHON:-}" ]; then
    exec "$PYTHON" -m openclaw_rl "$@"
elif [ -x "$root/.venv/bin/python" ]; then
    exec "$root/.venv/bin/python" -m openclaw_rl "$@"
elif command -v openclaw-rl >/dev/null; then
    exec openclaw-rl "$@"
fi
echo "error: openclaw-rl is not installed; run 'make up' in $root once, or say which Python with PYTHON=..." >&2
exit 2
