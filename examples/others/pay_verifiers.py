"""Pays the sessions of a `verifiers` run what its rewards say; those of one task are a group, and so are compared.

It needs no package: run it wherever the traces lie.

OPENCLAW_KEY=KEY python examples/others/pay_verifiers.py http://127.0.0.1:8000/v1 outputs/RUN/traces.jsonl
"""

import json
import os
import sys
import urllib.request
from pathlib import Path


def post(url: str, body: dict[str, object]) -> None:
    headers = {"Authorization": f"Bearer {os.environ['OPENCLAW_KEY']}", "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60).close()


def main(server: str, traces: str) -> None:
    for line in Path(traces).read_text(encoding="utf-8").splitlines():
        episode = json.loads(line)
        task = episode["task"].get("key") or episode["task"]["data"]["idx"]
        for trace in episode["traces"]:
            paid = [each["score"] * each["weight"] for each in trace["rewards"].values() if each]
            score = max(-1.0, min(1.0, 2 * sum(paid) - 1))
            body: dict[str, object] = {"score": score} if episode["ok"] else {"failed": "the run of it"}
            body["group"] = f"{Path(traces).resolve().parent.name}/{task}"  # of this run alone: a group trains once
            post(f"{server}/sessions/{trace['id']}/reward", body)
            post(f"{server}/sessions/{trace['id']}/end", {})
            print(trace["id"], body)


if __name__ == "__main__":
    main(*sys.argv[1:])
