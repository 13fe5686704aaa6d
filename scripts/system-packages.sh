#!/usr/bin/env bash
# Installs what the tests want from the system and pip cannot bring: bubblewrap, in which a model's programs run.
# Only as root on Debian and its kin; elsewhere, or where it fails, it says so and the sandbox tests are skipped.
set -u

command -v bwrap >/dev/null && exit 0
wanted="bubblewrap is not installed: coding tasks and sandboxed environments are refused, and the sandbox tests are skipped"
if [ "$(uname -s)" != Linux ]; then
  echo "==> $wanted"
elif [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "==> $wanted; as root: apt-get install bubblewrap"
else
  echo "==> installing bubblewrap"
  export DEBIAN_FRONTEND=noninteractive
  said=$(mktemp)
  { timeout 120 apt-get -qq update && timeout 120 apt-get -qq install --no-install-recommends -y bubblewrap; } \
    >"$said" 2>&1 </dev/null || { tail -n 3 "$said"; echo "==> $wanted"; }
  rm -f "$said"
fi
exit 0
