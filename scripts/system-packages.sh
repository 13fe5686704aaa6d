#!/usr/bin/env bash
# Installs what the tests want from the system and pip cannot bring: bubblewrap, in which a model's programs run, and a
# PostgreSQL server, on which the ledger's tests run a second time, and Chromium with its driver, in which the page and gui are tried.
# Only as root on Debian and its kin; elsewhere, or where it fails, it says so and the tests that need it are skipped.
set -u

has_postgres() { command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }

want() { # PACKAGE CONSEQUENCE : install a package, or say what follows from its absence
  local said
  if [ "$(uname -s)" != Linux ]; then
    echo "==> $1 is not installed: $2"
  elif [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "==> $1 is not installed: $2; as root: apt-get install $1"
  else
    echo "==> installing $1"
    said=$(mktemp)
    { timeout 120 apt-get -qq update && timeout 300 apt-get -qq install --no-install-recommends -y "$1"; } \
      >"$said" 2>&1 </dev/null || { tail -n 3 "$said"; echo "==> $1 is not installed: $2"; }
    rm -f "$said"
  fi
}

export DEBIAN_FRONTEND=noninteractive
command -v bwrap >/dev/null ||
  want bubblewrap "coding tasks and sandboxed environments are refused, and the sandbox tests are skipped"
has_postgres || want postgresql "the tests of the ledger on PostgreSQL are skipped"
command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
  want chromium "environment gui is refused, and the tests of it and of the page in a browser are skipped"
command -v chromedriver >/dev/null || want chromium-driver "gui cannot be driven by selenium, and the test of it is skipped"
exit 0
