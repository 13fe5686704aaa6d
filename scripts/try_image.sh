#!/bin/sh
# Run an image, wait until it is ready, ask for one completion with its key, and end it.
#
#   scripts/try_image.sh docker openclaw-rl:cpu        scripts/try_image.sh podman openclaw-rl:cpu
set -eu

engine=$1 image=$2 key=for-this-trial-alone
container=$("$engine" run --detach --env "OPENCLAW_API_KEY=$key" --publish 127.0.0.1::30000 "$image" up --preset cpu-demo --no-page)
trap '"$engine" rm --force --volumes "$container" >/dev/null' EXIT
address=$("$engine" port "$container" 30000 | head -n 1)

for _ in $(seq 120); do
  curl -fsS "http://$address/readyz" >/dev/null 2>&1 && break
  sleep 2
done
curl -fsS "http://$address/readyz" || { "$engine" logs "$container"; exit 1; }
curl -fsS "http://$address/v1/chat/completions" -H "authorization: Bearer $key" -H 'content-type: application/json' \
  -d '{"model": "embedded", "messages": [{"role": "user", "content": "What is tea?"}], "max_tokens": 24}'
"$engine" stop --time 60 "$container" >/dev/null
"$engine" logs "$container" 2>&1 | grep 'ended cleanly'
