"""How clients are told where the server is, and how their own settings survive it."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from openclaw_rl.cli.connect import connect
from openclaw_rl.clients import connect as connecting
from openclaw_rl.clients.connect import ServerInfo
from openclaw_rl.errors import BackendDown, BackendError, ConfigError, NotAllowed

FOUND = ServerInfo(url="http://127.0.0.1:30000/v1", model="tiny", context=8192)
LISTING = {"object": "list", "data": [{"id": "tiny", "context_length": 8192}, {"id": "tiny-side"}]}


class Listing(BaseHTTPRequestHandler):
    """A server as far as `read_server` sees it; with a key if one is set."""

    key: str | None = None
    listing = json.dumps(LISTING)

    def do_GET(self) -> None:
        allowed = self.key is None or self.headers["authorization"] == f"Bearer {self.key}"
        body = self.listing.encode()
        self.send_response(200 if allowed and self.path == "/v1/models" else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Listing, "key", None)
    for name in ("OPENCLAW_API_KEY", "OPENCLAW_CONFIG_PATH", "OPENCLAW_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Listing)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(connect, words, catch_exceptions=code == 0)
    assert done.exit_code == code, done.output
    return done.stdout


# --- the server ---


def look(url: str, key: str | None = None) -> ServerInfo:
    return asyncio.run(connecting.read_server(url, key))


def test_what_is_served_is_read_from_the_server(url: str) -> None:
    assert look(url + "/") == ServerInfo(url=url, model="tiny", context=8192)


def test_no_server_is_said_with_the_remedy() -> None:
    with pytest.raises(BackendDown, match="no server answers at .*openclaw-rl up.*--url"):
        look("http://127.0.0.1:1/v1")


def test_a_wrong_key_is_said_with_the_remedy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listing, "key", "right")
    assert look(url, "right").model == "tiny"
    with pytest.raises(NotAllowed, match="--key-env"):
        look(url, "wrong")


@pytest.mark.parametrize("listing", ["<html>", "{}", '{"data": []}', '{"data": [{"id": "x"}]}', "[1]"])
def test_another_server_is_told_apart(url: str, listing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listing, "listing", listing)
    with pytest.raises(BackendError, match="no OpenClaw-RL server"):
        look(url)


def test_a_model_that_is_still_loading_has_no_context_to_tell(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listing, "listing", '{"data": [{"id": "x", "context_length": 0}]}')
    with pytest.raises(BackendDown, match="still being loaded"):
        look(url)


@pytest.mark.parametrize(("context", "output"), [(8192, 2048), (2048, 512), (131_072, 8192)])
def test_a_reply_leaves_room_for_its_question(context: int, output: int) -> None:
    assert ServerInfo(url="u", model="m", context=context).output == output


# --- OpenClaw ---


def test_the_entry_tells_openclaw_the_truth_about_the_model() -> None:
    provider = connecting.openclaw(FOUND, key_env=None)["models"]["providers"]["openclaw-rl"]
    assert (provider["baseUrl"], provider["api"], provider["apiKey"]) == (FOUND.url, "openai-completions", "local")
    assert provider["timeoutSeconds"] == 600
    assert [model["id"] for model in provider["models"]] == ["tiny", "tiny-side"]
    for model in provider["models"]:
        assert (model["contextWindow"], model["maxTokens"], model["reasoning"]) == (8192, 2048, False)
        assert model["compat"] == {"supportsPromptCacheKey": True, "sendSessionAffinityHeaders": True}


def test_the_talk_goes_to_the_model_and_everything_beside_it_to_its_side() -> None:
    defaults = connecting.openclaw(FOUND, key_env=None)["agents"]["defaults"]
    side = "openclaw-rl/tiny-side"
    assert defaults == {
        "model": {"primary": "openclaw-rl/tiny"},
        "utilityModel": side,
        "compaction": {"model": side, "memoryFlush": {"model": side}},
        "heartbeat": {"model": side},
    }


def test_a_key_is_named_and_never_written() -> None:
    settings = connecting.openclaw(FOUND, key_env="MY_KEY")
    assert settings["models"]["providers"]["openclaw-rl"]["apiKey"] == "${MY_KEY}"


def test_lean_adds_to_the_entry_and_takes_nothing_from_it() -> None:
    plain, lean = (connecting.openclaw(FOUND, key_env=None, lean=each) for each in (False, True))
    assert connecting.merge(lean, plain) == lean
    defaults = lean["agents"]["defaults"]
    assert (defaults["contextInjection"], defaults["skills"], defaults["heartbeat"]["every"]) == ("never", [], "0m")
    assert defaults["compaction"]["keepRecentTokens"] == 1024
    assert lean["tools"] == {
        "allow": ["read", "write", "edit", "exec"],
        "deny": ["apply_patch"],
        "toolSearch": False,
    }


@pytest.mark.parametrize(("asked", "given"), [(None, 2048), (96, 96), (100_000, 2048)])
def test_a_shorter_reply_may_be_asked_for_a_longer_one_not(asked: int | None, given: int) -> None:
    provider = connecting.openclaw(FOUND, key_env=None, max_tokens=asked)["models"]["providers"]["openclaw-rl"]
    assert {model["maxTokens"] for model in provider["models"]} == {given}


def test_the_plugin_is_allowed_to_see_the_run_of_a_call() -> None:
    entry = connecting.openclaw(FOUND, key_env=None, plugin=True)["plugins"]["entries"]["openclaw-rl"]
    assert entry == {"enabled": True, "hooks": {"allowConversationAccess": True}}


# --- files ---


def test_merging_keeps_all_else_and_replaces_what_is_no_table() -> None:
    old = {"a": {"x": 1, "y": [1, 2]}, "model": "theirs", "kept": True}
    new = {"a": {"y": [3]}, "model": {"primary": "ours"}}
    assert connecting.merge(old, new) == {"a": {"x": 1, "y": [3]}, "model": {"primary": "ours"}, "kept": True}
    assert old == {"a": {"x": 1, "y": [1, 2]}, "model": "theirs", "kept": True}


def test_writing_keeps_a_copy_of_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "openclaw.json"
    file.write_text('{"channels": {"slack": {"token": "t"}}}')
    file.chmod(0o600)
    backup = connecting.write(file, {"models": {"mode": "merge"}})
    assert backup is not None
    assert backup.read_text() == '{"channels": {"slack": {"token": "t"}}}'
    assert json.loads(file.read_text()) == {"channels": {"slack": {"token": "t"}}, "models": {"mode": "merge"}}
    assert file.stat().st_mode & 0o777 == backup.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["openclaw.json", "openclaw.json.before-openclaw-rl"]


def test_lean_never_gives_the_agent_a_tool_that_its_owner_took_away(tmp_path: Path) -> None:
    file = tmp_path / "openclaw.json"
    file.write_text('{"tools": {"allow": ["read"], "deny": ["exec"], "profile": "mine"}}')
    connecting.write(file, connecting.openclaw(FOUND, key_env=None, lean=True))
    tools = json.loads(file.read_text())["tools"]
    assert tools == {"allow": ["read"], "deny": ["exec", "apply_patch"], "profile": "mine", "toolSearch": False}


def test_every_backup_is_kept_and_writing_twice_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "openclaw.json"
    assert connecting.write(file, {"a": 1}) is None
    assert connecting.write(file, {"a": 1}) is None
    backups = [connecting.write(file, {"a": number}) for number in (2, 3)]
    assert [json.loads(path.read_text())["a"] for path in backups if path] == [1, 2]


def test_a_file_reached_by_a_link_is_written_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real, link = tmp_path / "dotfiles" / "openclaw.json", tmp_path / "openclaw.json"
    real.write_text("{}")
    link.symlink_to(real)
    connecting.write(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads(real.read_text()) == {"a": 1}


@pytest.mark.parametrize("text", ['{"a": 1, // mine\n}', "{a: 1}", "{'a': 1}", '{"a": 1,}', ""])
def test_comments_are_refused_rather_than_lost(text: str, tmp_path: Path) -> None:
    file = tmp_path / "openclaw.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="not plain JSON.*without --write"):
        connecting.write(file, {"b": 2})
    assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


# --- other clients ---


def test_every_client_is_told_the_address_and_the_model() -> None:
    for client in connecting.CLIENTS:
        text = connecting.recipe(client, FOUND, key_env="MY_KEY").text
        assert FOUND.root in text
        assert "MY_KEY" in text
    assert "tiny" in connecting.recipe("openai", FOUND, key_env=None).where


def test_claude_codes_small_work_goes_to_the_side() -> None:
    lines = connecting.recipe("claude-code", FOUND, key_env=None).text.splitlines()
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:30000" in lines
    assert "export ANTHROPIC_MODEL=tiny" in lines
    assert "export ANTHROPIC_DEFAULT_HAIKU_MODEL=tiny-side" in lines


def test_codex_gets_a_file_that_can_be_read() -> None:
    settings = tomllib.loads(connecting.recipe("codex", FOUND, key_env="MY_KEY").text)
    provider = settings["model_providers"][settings["model_provider"]]
    assert (provider["base_url"], provider["wire_api"], provider["env_key"]) == (FOUND.url, "responses", "MY_KEY")
    assert settings["model_context_window"] == 8192
    assert "env_key" not in connecting.recipe("codex", FOUND, key_env=None).text


def test_opencode_gets_a_file_that_can_be_read() -> None:
    settings = json.loads(connecting.recipe("opencode", FOUND, key_env=None).text)
    assert settings["small_model"] == "openclaw-rl/tiny-side"
    assert settings["provider"]["openclaw-rl"]["models"]["tiny"] == {"limit": {"context": 8192, "output": 2048}}


# --- the command ---


def test_the_verb_prints_the_entry_and_writes_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path))
    printed = json.loads(run("openclaw", "--url", url))
    assert printed == connecting.openclaw(ServerInfo(url=url, model="tiny", context=8192), key_env=None)
    assert list(tmp_path.iterdir()) == []


def test_the_verb_writes_where_openclaw_reads(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path))
    assert str(tmp_path / "openclaw.json") in run("openclaw", "--url", url, "--write", "--lean", "--plugin")
    written = json.loads((tmp_path / "openclaw.json").read_text())
    assert written["tools"]["toolSearch"] is False
    assert written["plugins"]["entries"]["openclaw-rl"]["enabled"] is True


def test_the_key_is_taken_from_the_variable_that_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listing, "key", "right")
    monkeypatch.setenv("THEIR_KEY", "right")
    assert 'OPENAI_API_KEY="$THEIR_KEY"' in run("openai", "--url", url, "--key-env", "THEIR_KEY")
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        CliRunner().invoke(connect, ["openai", "--url", url, "--key-env", "NO_SUCH_KEY"], catch_exceptions=False)


def test_the_verb_asks_where_up_listens(monkeypatch: pytest.MonkeyPatch, url: str, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENCLAW_HOST", "0.0.0.0")
    monkeypatch.setenv("OPENCLAW_PORT", url.removesuffix("/v1").rpartition(":")[2])
    assert f"OPENAI_BASE_URL={url}" in run("openai")
