"""The image, the composition and the manifests name commands, settings, ports and paths that the program has."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from openclaw_rl import config
from openclaw_rl.cli import cli
from openclaw_rl.config import SETTINGS, load
from openclaw_rl.config.names import ENVIRONMENT
from openclaw_rl.testing.servers import running_app
from scripts import check_wheel

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "compose.yaml"
CUDA = ROOT / "deploy" / "compose.cuda.yaml"
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
KEYS = {"OPENCLAW_API_KEY": "a", "POSTGRES_PASSWORD": "b"}
API, PAGE = 30000, 30001
"""where the API listens unless told otherwise, and the page at the port after it"""
OTHERS = {"PATH", "PYTHONUNBUFFERED", "HF_HOME", "PGPASSWORD", "OPENCLAW_RL_CACHE"}
"""variables that Python, libraries and the cache read; all others are settings"""


def refuse_unknown(names: Sequence[str] | Mapping[str, Any]) -> None:
    """Fail for a variable that the program does not read."""
    for name in set(names) - OTHERS:
        key = name.removeprefix("OPENCLAW_RL__").replace("__", ".").lower()
        assert name in ENVIRONMENT or (name.startswith("OPENCLAW_RL__") and key in SETTINGS), name


def parse(words: Sequence[str]) -> None:
    """Fail for a command, a flag or a preset that the program does not have."""
    command: click.Command = cli.commands[words[0]]
    with command.make_context(words[0], list(words[1:])) as context:
        assert context.args == []


# --- the image


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", "\n".join(line for line in lines(ROOT / "Dockerfile") if not line.startswith("#")))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def of(name: str) -> list[str]:
    return [rest for kind, rest in instructions() if kind == name]


def test_the_image_runs_the_program_with_settings_and_ports_that_it_has() -> None:
    environ = dict(pair.split("=", 1) for rest in of("ENV")[1:] for pair in shlex.split(rest))
    refuse_unknown(environ)
    assert json.loads(of("ENTRYPOINT")[0])[-1] == "openclaw-rl"
    parse(json.loads(of("CMD")[0]))
    made = load(environ=environ).config
    assert (made.serve.host, made.serve.port, str(made.run.dir)) == ("0.0.0.0", API, "/data/run")
    assert of("EXPOSE") == [f"{made.serve.port} {made.serve.port + 1}"] == [f"{API} {PAGE}"]
    kept = of("VOLUME")[0]
    assert all(environ[name].startswith(f"{kept}/") for name in ("HF_HOME", "OPENCLAW_RL_CACHE"))
    assert f"http://127.0.0.1:{API}/healthz" in of("HEALTHCHECK")[0]


def test_the_image_has_the_torch_that_is_tested() -> None:
    assert f"TORCH_VERSION={check_wheel.TORCH_VERSION}" in of("ARG")


def test_the_image_copies_what_is_there_and_what_its_ignore_file_lets_through() -> None:
    let_through = {line.removeprefix("!") for line in lines(ROOT / ".dockerignore") if line.startswith("!")}
    copied = {name for rest in of("COPY") if "--from" not in rest for name in rest.split()[:-1]}
    assert copied == let_through
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"src", "pyproject.toml", project["readme"], *project["license-files"]} <= copied


def test_the_script_that_tries_an_image_can_be_read_by_a_shell() -> None:
    script = ROOT / "scripts" / "try_image.sh"
    subprocess.run(["sh", "-n", script], check=True)
    run = next(line for line in lines(script) if " run --detach " in line)
    parse(shlex.split(run.partition('"$image" ')[2].rstrip(")")))


# --- the composition


def substituted(text: str) -> str:
    """A composition's text with its variables filled in, as compose does."""

    def value(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        assert name in KEYS or default is not None, f"{name} has neither a value nor a default"
        return KEYS.get(name, default or "")

    return re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*)|:\?[^}]*)?\}", value, text)


def services(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(substituted(file.read_text()))["services"]
    return found


def ours() -> Iterator[dict[str, Any]]:
    found = services(COMPOSE)
    yield found["server"]
    yield found["page"]


def test_the_services_run_commands_with_settings_that_exist() -> None:
    for service in (*ours(), services(CUDA)["server"]):
        parse(service["command"])
    for service in ours():
        refuse_unknown(service["environment"])
        made = load(environ=service["environment"]).config
        assert made.store.url is not None
        assert made.policy.model == "embedded"


def test_the_services_share_a_ledger_and_a_volume_and_are_reached_from_this_machine_alone() -> None:
    server, page = ours()
    database = services(COMPOSE)["postgres"]
    for service in (server, page):
        made = load(environ=service["environment"]).config
        url = made.store.url.get_secret_value() if made.store.url else ""
        assert url == "postgresql://{POSTGRES_USER}@postgres:5432/{POSTGRES_DB}".format(**database["environment"])
        assert service["environment"]["PGPASSWORD"] == database["environment"]["POSTGRES_PASSWORD"] == "b"
        assert service["volumes"] == [f"data:{of('VOLUME')[0]}"]
    assert (server["ports"], page["ports"]) == ([f"127.0.0.1:{API}:{API}"], [f"127.0.0.1:{PAGE}:{PAGE}"])
    assert json.dumps(server["healthcheck"]["test"][1:]) == of("HEALTHCHECK")[0].partition("CMD ")[2]
    words = page["command"]
    assert words[words.index("--url") + 1] == f"http://server:{API}/v1"
    assert words[words.index("--port") + 1] == str(PAGE)
    assert set(yaml.safe_load(substituted(COMPOSE.read_text()))["volumes"]) == {"data", "postgres"}


def test_a_container_is_given_longer_to_end_than_open_streams_are() -> None:
    drain = load(environ={}).config.run.drain
    assert all(int(service["stop_grace_period"].rstrip("s")) > drain for service in ours())
    assert pod()["terminationGracePeriodSeconds"] > drain


def test_the_overlay_for_gpus_changes_services_and_arguments_that_exist() -> None:
    overlay = services(CUDA)
    assert set(overlay) <= set(services(COMPOSE))
    asked = {argument.partition("=")[0] for argument in of("ARG")}
    assert set(overlay["server"]["build"]["args"]) <= asked


# --- the manifests


def documents() -> list[dict[str, Any]]:
    return [each for file in MANIFESTS for each in yaml.safe_load_all(file.read_text())]


def pod() -> dict[str, Any]:
    found: dict[str, Any] = the("StatefulSet")["spec"]["template"]["spec"]
    return found


def the(kind: str) -> dict[str, Any]:
    [found] = [each for each in documents() if each["kind"] == kind]
    return found


def test_the_manifests_run_the_image_with_its_ports_user_and_volume() -> None:
    [server] = pod()["containers"]
    parse(server["args"])
    ports = {each["name"]: each["containerPort"] for each in server["ports"]}
    assert ports == {"api": API, "page": PAGE}
    assert {each["name"]: (each["port"], each["targetPort"]) for each in the("Service")["spec"]["ports"]} == {
        name: (port, name) for name, port in ports.items()
    }
    assert f"--uid {pod()['securityContext']['runAsUser']}" in " ".join(of("RUN"))
    mounted = {each["name"]: each["mountPath"] for each in server["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in the("StatefulSet")["spec"]["volumeClaimTemplates"]}
    assert set(mounted) == claims | {each["name"] for each in pod()["volumes"]}
    assert mounted["data"] == of("VOLUME")[0]


def test_the_labels_of_the_manifests_lead_to_the_pod() -> None:
    labels = the("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert the("StatefulSet")["spec"]["selector"]["matchLabels"] == the("Service")["spec"]["selector"] == labels
    assert the("StatefulSet")["spec"]["serviceName"] == the("Service")["metadata"]["name"]
    assert set(the("Kustomization")["resources"]) == {file.name for file in MANIFESTS} - {"kustomization.yaml"}


def test_the_secret_that_the_manifests_want_is_made_by_the_line_above_them() -> None:
    [source] = pod()["containers"][0]["envFrom"]
    line = lines(ROOT / "deploy" / "kubernetes" / "kustomization.yaml")[0]
    assert f"create secret generic {source['secretRef']['name']} " in line
    refuse_unknown(re.findall(r"--from-literal=(\w+)=", line))


@pytest.mark.anyio
async def test_every_path_that_is_probed_answers(tmp_path: Path) -> None:
    probes = {
        pod()["containers"][0][kind]["httpGet"]["path"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert probes == {"/healthz", "/readyz"}
    async with running_app(tmp_path, "serve.api_key=secret") as run:
        await run.app.ready.wait()
        for path in probes:
            assert (await run.client.get(path)).status_code == 200, "without a key"


def test_the_cache_is_where_the_image_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_RL_CACHE", "/data/cache")
    assert str(config.cache_dir()) == "/data/cache"
