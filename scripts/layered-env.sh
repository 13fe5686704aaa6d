#!/bin/sh
# Set up an environment over the one that this project is developed in, with these packages on top, and print its Python.
#
#   scripts/layered-env.sh NAME REQUIREMENT...        scripts/layered-env.sh ray-2.60.0 'ray[default]==2.60.0'
#
# NAME is a folder, or the name of one in ~/.cache/openclaw-rl. What is set up is kept. It is for tests of what not everybody needs.
set -eu

case $1 in
  */*) folder=$1 ;;
  *) folder=${XDG_CACHE_HOME:-$HOME/.cache}/openclaw-rl/$1 ;;
esac
shift
below=${PYTHON:-.venv/bin/python}
if [ ! -f "$folder/.ready" ]; then
  echo "==> installing $* into $folder" >&2
  packages=$("$below" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$below" -m venv --clear "$folder"
  inside=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "import site; site.addsitedir('$packages')" > "$inside/below.pth"
  "$folder/bin/python" -m pip --disable-pip-version-check -q install "$@" >&2
  touch "$folder/.ready"
fi
echo "$folder/bin/python"
