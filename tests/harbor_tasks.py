"""Task folders in the layout of Harbor and terminal-bench, in the ways that published ones run their tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

INSTALL: Final = """#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
"""
REWARD: Final = """
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
UVX: Final = f"""{INSTALL}
if [ "$PWD" = "/" ]; then
    echo "Error: No working directory set."
    exit 1
fi
uvx \\
  -p 3.13 \\
  -w pytest==8.4.1 \\
  -w pytest-json-ctrf==0.3.5 \\
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
{REWARD}"""
PIP: Final = f"pip install -q pytest==8.4.1\npython3 -m pytest -q /tests/test_outputs.py{REWARD}"
PIPED: Final = f"""set -euo pipefail
uv pip install --system pytest==8.4.1 pytest-json-ctrf==0.3.5
if pytest /tests/test_outputs.py -rA; then true{REWARD}fi
"""
UV_RUN: Final = f"{INSTALL}\nuv init\nuv add pytest==8.4.1\nuv run pytest $TEST_DIR/test_outputs.py -rA\n"
UV_VENV: Final = f"""{INSTALL}
uv venv .tests
source .tests/bin/activate
uv pip install pytest==8.4.1
uv run pytest $TEST_DIR/test_outputs.py -rA
"""
TRAP: Final = """reward=0
mkdir -p /logs/verifier
trap 'echo "$reward" > /logs/verifier/reward.txt' EXIT
set -e
exit_code=0
uvx --with pytest==8.4.1 --with pytest-json-ctrf==0.3.5 pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py \\
  || exit_code=$?
[ $exit_code -eq 0 ] && reward=1
exit $exit_code
"""
CTRF: Final = """uvx -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py
python3 - <<'END'
import json
found = json.load(open("/logs/verifier/ctrf.json"))["results"]["summary"]
good = found["failed"] == 0 and found["passed"] > 0
json.dump({"reward": 1.0 if good else 0.0}, open("/logs/verifier/reward.json", "w"))
END
"""
SCRIPTS: Final[Mapping[str, str | None]] = {
    "curl and uvx": UVX,
    "pip and python -m pytest": PIP,
    "uv pip and pytest": PIPED.replace("true\nif", "true; else false; fi\nif").removesuffix("fi\n"),
    "uv run": UV_RUN,
    "uv venv": UV_VENV,
    "a trap": TRAP,
    "a summary": CTRF,
    "no script": None,
}
TESTS: Final = """import pytest
from pathlib import Path


@pytest.fixture
def words():
    return Path("/app/out.txt").read_text().split()


@pytest.mark.parametrize("place", [0, 1])
def test_capitals(words, place):
    assert words[place] == ["HELLO", "WORLD"][place]


class TestLength:
    def test_two(self, words, shared):
        assert len(words) == shared


def test_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("X", "1")
    assert (tmp_path / "a").parent.is_dir()
"""
CONFTEST: Final = "import pytest\n\n\n@pytest.fixture\ndef shared():\n    return 2\n"
DOCKERFILE: Final = """FROM ubuntu:24.04
RUN apt-get update && \\
    apt-get install -y curl python3 && \\
    rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY data.txt ./
"""
SOLUTION: Final = "tr a-z A-Z < data.txt > out.txt"


def put_task(
    folder: Path,
    name: str,
    *,
    script: str | None,
    tests: str = TESTS,
    dockerfile: str = DOCKERFILE,
    solution: str = SOLUTION,
    old: bool = False,
) -> None:
    """Write a task; ``old``: as terminal-bench has it, with `run-tests.sh` and `task.yaml`."""
    place = folder / name
    files = {
        "tests/test_outputs.py": tests,
        "tests/conftest.py": CONFTEST,
        "environment/data.txt": "hello world\n",
        "environment/Dockerfile": dockerfile,
        "solution/solve.sh": solution,
    }
    instruction = "Write data.txt in capitals into out.txt."
    files |= {"task.yaml": f"instruction: {instruction}\n"} if old else {"instruction.md": instruction}
    if script is not None:
        files["run-tests.sh" if old else "tests/test.sh"] = script
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
