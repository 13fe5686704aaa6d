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
FOLDER=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/openclaw-rl/tinker-$VERSION}
PYTHON=${PYTHON:-.venv/bin/python}

if [ "$("$PYTHON" -c 'import importlib.metadata as m; print(m.version("tinker"))' 2>/dev/null)" = "$VERSION" ]; then
  echo "$PYTHON"
  exit
fi
if [ ! -f "$FOLDER/.ready" ]; then
  echo "==> installing tinker $VERSION into $FOLDER" >&2
  below=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$PYTHON" -m venv --clear "$FOLDER"
  inside=$("$FOLDER/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "import site; site.addsitedir('$below')" > "$inside/below.pth"
  "$FOLDER/bin/python" -m pip --disable-pip-version-check -q install "tinker==$VERSION" >&2
  touch "$FOLDER/.ready"
fi
echo "$FOLDER/bin/python"
