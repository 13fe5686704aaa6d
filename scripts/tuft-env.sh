#!/bin/sh
# Set up TuFT, another server of Tinker's protocol, over the environment that this project is developed in, and print its Python.
#
#   scripts/tuft-env.sh [FOLDER]
#
# The folder is ~/.cache/openclaw-rl/tuft-VERSION unless one is named. About 350 MB; what is set up is kept. TuFT names releases of
# torch, peft and vLLM; here it runs with those that are there, and without vLLM, which its CPU mode does not load.
set -eu

VERSION=0.2.2
FOLDER=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/openclaw-rl/tuft-$VERSION}

python=$(TINKER_VERSION=0.25.0 "$(dirname "$0")/tinker-env.sh" "$FOLDER")
if [ ! -f "$FOLDER/.tuft" ]; then
  echo "==> installing tuft $VERSION into $FOLDER" >&2
  "$python" -m pip --disable-pip-version-check -q install 'fastapi>=0.133,<0.137' omegaconf ray nvidia-ml-py typer \
    opentelemetry-sdk opentelemetry-exporter-otlp opentelemetry-instrumentation-fastapi opentelemetry-instrumentation-logging >&2
  "$python" -m pip --disable-pip-version-check -q install --no-deps "tuft==$VERSION" >&2
  touch "$FOLDER/.tuft"
fi
echo "$python"
