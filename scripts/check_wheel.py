"""Install a wheel in a new environment, start `openclaw-rl up` in another folder, and ask for one completion.

    python scripts/check_wheel.py dist/openclaw_rl-0.1.0-py3-none-any.whl

Torch is installed first, at TORCH_VERSION of the environment, then the wheel with its extra `local`.
Nothing of the checkout is on the path, and the embedded model is fetched as for a first user.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LARGEST = 4_000_000
"""bytes of a wheel"""
TORCH_VERSION = "2.13.0"
"""unless the environment has another"""
START_SECONDS = 600.0
LISTENING = re.compile(r"listening on +(http://\S+)")


class CheckFailed(Exception):
    """The wheel does not do what a user would expect of it."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    try:
        check(parser.parse_args(words).wheel.resolve())
    except (CheckFailed, subprocess.CalledProcessError) as error:
        print(f"==> the wheel is not fit: {error}", file=sys.stderr)
        return 1
    return 0


def check(wheel: Path) -> None:
    """Raise CheckFailed unless the wheel is small, installs, starts, answers and ends cleanly."""
    size = wheel.stat().st_size
    if size > LARGEST:
        raise CheckFailed(f"{wheel.name} has {size:,} bytes; at most {LARGEST:,}")
    say(f"{wheel.name}: {size / 1e6:.2f} MB")
    with tempfile.TemporaryDirectory(prefix="check-wheel-") as name:
        folder = Path(name)
        command = install(wheel, folder / "venv")
        report_version(command, expected=wheel.name.split("-")[1])
        with server(command, folder) as url:
            complete(url)
        say("it ended cleanly")


def install(wheel: Path, environment: Path) -> Path:
    """The program `openclaw-rl` of a new virtual environment that holds torch and the wheel."""
    began = time.monotonic()
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, f"torch=={os.environ.get('TORCH_VERSION', TORCH_VERSION)}"], check=True)
    subprocess.run([*pip, f"{wheel}[local]"], check=True)
    total = sum(path.lstat().st_size for path in environment.rglob("*"))
    say(f"installed in {time.monotonic() - began:.0f} s, {total / 1e9:.2f} GB with torch")
    return environment / "bin" / "openclaw-rl"


def report_version(command: Path, *, expected: str) -> None:
    told = subprocess.run([command, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    if told != expected:
        raise CheckFailed(f"openclaw-rl --version is {told}, the wheel is {expected}")


@contextmanager
def server(command: Path, folder: Path) -> Iterator[str]:
    """Address of a server that is ended afterwards; its log is printed if it fails."""
    began = time.monotonic()
    elsewhere, log = folder / "elsewhere", folder / "log"
    elsewhere.mkdir()
    words = [command, "up", "--preset", "cpu-demo", "--port", "0", "--run-dir", folder / "run"]
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environ["OPENCLAW_RL_CACHE"] = str(folder / "cache")
    with log.open("w") as output:
        process = subprocess.Popen(words, cwd=elsewhere, env=environ, stdout=output, stderr=output)
    try:
        yield wait_until_it_listens(process, log, until=began + START_SECONDS)
        process.send_signal(signal.SIGTERM)
        if (status := process.wait(timeout=120)) != 0:
            raise CheckFailed(f"it ended with status {status}")
    except CheckFailed:
        shutil.copyfileobj(log.open(), sys.stderr)
        raise
    finally:
        process.kill()
        process.wait()


def wait_until_it_listens(process: subprocess.Popen[bytes], log: Path, *, until: float) -> str:
    while time.monotonic() < until:
        if found := LISTENING.search(log.read_text()):
            return found[1]
        if process.poll() is not None:
            raise CheckFailed(f"it ended with status {process.returncode} before it listened")
        time.sleep(0.2)
    raise CheckFailed(f"it does not listen after {START_SECONDS:.0f} s")


def complete(url: str) -> None:
    """The first reply; it waits until the embedded model is fetched, converted and loaded."""
    began = time.monotonic()
    asked = {"model": "embedded", "messages": [{"role": "user", "content": "What is tea?"}], "max_tokens": 24}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        reply: str = json.load(response)["choices"][0]["message"]["content"]
    if not reply.strip():
        raise CheckFailed("the reply is empty")
    say(f"answers after {time.monotonic() - began:.0f} s, the model fetched, converted and loaded: {reply!r}")


def say(line: str) -> None:
    print(f"==> {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
