#!/bin/sh
# Print a Python that has one release of Tinker's SDK: the one that this project is developed in where that has it, else one in
# an environment of its own over it, which is set up.
#
#   scripts/tinker-env.sh [FOLDER]      TINKER_VERSION=0.25.0 scripts/tinker-env.sh
#
# The folder is ~/.cache/openclaw-rl/tinker-VERSION unless one is named. About 50 MB; what is set up is kept. It is for the tests alone:
# to use Tinker install openclaw-rl[tinker].
set -eu

VERSION=${TINKER_VERSION:-0.36.0}
PYTHON=${PYTHON:-.venv/bin/python}

if [ "$("$PYTHON" -c 'import importlib.metadata as m; print(m.version("tinker"))' 2>/dev/null)" = "$VERSION" ]; then
  echo "$PYTHON"
  exit
fi
exec "$(dirname "$0")/layered-env.sh" "${1:-tinker-$VERSION}" "tinker==$VERSION"
