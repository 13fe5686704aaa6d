"""What is shown of the settings, the keys of users, and that no secret is ever shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from configs import UNHURRIED, everything_shown, refused, shown_rows, written
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl import config
from openclaw_rl.config import ENVIRONMENT, SETTINGS, load
from openclaw_rl.config.names import FIRST, SECTIONS
from openclaw_rl.config.settings import Config
from openclaw_rl.config.shown import literal
from openclaw_rl.errors import ConfigError

pytestmark = pytest.mark.usefixtures("elsewhere")


# Secrets

SECRET = st.text("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", min_size=12, max_size=40)


@UNHURRIED
@given(
    secret=SECRET,
    way=st.sampled_from(["known", "named", "file", "set"]),
    path=st.sampled_from(["serve.api_key", "cloud.tinker_api_key", "judge.options.api_key"]),
)
def test_a_secret_is_shown_nowhere(secret: str, way: str, path: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    known = {ENVIRONMENT[name]: name for name in ("OPENCLAW_API_KEY", "TINKER_API_KEY")}
    named = f"OPENCLAW_RL__{path.upper().replace('.', '__')}"
    environ = {known.get(path, named) if way == "known" else named: secret} if way in ("known", "named") else {}
    file = written(tmp_path_factory.getbasetemp(), f'{path} = "{secret}"' if way == "file" else "")
    resolved = load(file=file, environ=environ, sets=[f"{path}={secret}"] if way == "set" else [])
    assert secret not in everything_shown(resolved)
    rows = {row.path: row.value for row in shown_rows(resolved)}
    assert rows[path].strip('"') == "(set)"


@UNHURRIED
@given(secret=SECRET)
def test_a_secret_that_is_refused_is_not_shown_either(secret: str) -> None:
    sets = [
        f'serve={{ api_key = ["{secret}"] }}',
        f'serve.api_kee="{secret}"',
        f"serve={secret}",
        f"judge.llm.api_key_env=sk-{secret}",
        f"judge.llm.base_url=http://me:{secret}@host/v1",
        f"judge.workers={{ api_key = '{secret}' }}",
    ]
    said = refused(sets=sets)
    assert len(said.splitlines()) == 6
    assert secret not in said


def test_a_secret_in_a_file_that_everybody_can_read_is_noted(tmp_path: Path) -> None:
    file = written(tmp_path, 'serve.api_key = "one"')
    file.chmod(0o644)
    assert load(file=file, environ={}).notes == (
        f"serve.api_key is a secret and all users of this machine can read {file}: chmod 600 it",
    )
    file.chmod(0o600)
    assert load(file=file, environ={}).notes == ()


def test_a_secret_typed_on_the_command_line_is_noted() -> None:
    assert "where others can see it" in load(environ={}, sets=["serve.api_key=one"]).notes[0]


def test_a_full_tune_has_a_tenth_of_an_adapters_rate_unless_it_is_given_one() -> None:
    assert load(environ={}).config.train.learning_rate == 5e-4
    assert load(environ={}, flags={"--use-lora": False}).config.train.learning_rate == 5e-5
    assert load(environ={}, flags={"--use-lora": False, "--lr": 3e-6}).config.train.learning_rate == 3e-6


# Keys


def keys(tmp_path: Path, name: str, text: str, **environ: str) -> dict[str, str]:
    file = tmp_path / name
    file.write_text(text)
    file.chmod(0o600)
    return dict(config.api_keys(load(environ=environ, sets=[f"serve.keys_file={file}"]).config))


def test_without_a_key_there_are_no_keys() -> None:
    assert config.api_keys(Config()) == {}


def test_keys_come_from_the_environment_and_from_lines(tmp_path: Path) -> None:
    found = keys(tmp_path, "keys", "# ours\nu1: k1\n\nu2:k:2\nu1:k3\n", OPENCLAW_API_KEY="k0")
    assert found == {"k0": "default", "k1": "u1", "k:2": "u2", "k3": "u1"}


def test_keys_come_from_toml(tmp_path: Path) -> None:
    assert keys(tmp_path, "keys.toml", 'u1 = "k1"\nu2 = ["k2", "k3"]') == {"k1": "u1", "k2": "u2", "k3": "u2"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("keys", "u1:k1\nSECRET\n", "line 2: needs a user and a key; write one user:key to a line"),
        ("keys", "u1:SECRET\nu2:SECRET", "line 2: u2 and u1 have the same key"),
        ("keys.toml", 'u1 = "SECRET', "is not valid TOML"),
        ("keys.toml", 'u1 = ["SECRET", 3]', "u1 must be a key or a list of keys, as text"),
    ],
)
def test_a_wrong_keys_file_is_refused_without_showing_a_key(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys(tmp_path, name, text)
    assert said in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_keys_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    resolved = load(environ={}, sets=[f"serve.keys_file={tmp_path / 'none'}"])
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        config.api_keys(resolved.config)


def test_a_keys_file_that_everybody_can_read_is_noted(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("u1:k1")
    (tmp_path / "keys").chmod(0o644)
    assert (
        "all users of this machine can read the keys"
        in load(environ={}, sets=[f"serve.keys_file={tmp_path / 'keys'}"]).notes[0]
    )


# What is shown


def test_the_template_changes_nothing_as_it_stands(tmp_path: Path) -> None:
    assert load(file=written(tmp_path, config.template()), environ={}) == load(environ={})


def test_the_template_with_every_setting_uncommented_is_the_defaults(tmp_path: Path) -> None:
    bare = re.sub(r"^#([\w.]+ = )", r"\1", config.template(), flags=re.MULTILINE)
    file = written(tmp_path, bare)
    resolved = load(file=file, environ={})
    assert resolved.config == Config()
    tables = {path for path, setting in SETTINGS.items() if setting.kind == "table"}
    assert {path for path, source in resolved.sources.items() if source == f"file {file}"} == SETTINGS.keys() - tables


@UNHURRIED
@given(paths=st.sets(st.sampled_from(sorted(SETTINGS)), max_size=8))
def test_any_part_of_the_template_may_be_uncommented(paths: set[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = []
    for line in config.template().splitlines():
        name = re.match(r"#([\w.]+) = ", line)
        lines.append(line[1:] if name and name[1] in paths else line)
    assert load(file=written(tmp_path_factory.getbasetemp(), "\n".join(lines)), environ={}).config == Config()


def test_the_template_says_what_a_setting_does_its_range_and_its_default() -> None:
    text = config.template()
    assert (
        "# port to listen on; 0 takes a free one\n# a whole number from 0 to 65535; default: 30000\n#serve.port = 30000\n"
        in text
    )
    assert sorted(re.findall(r"^#([\w.]+) = ", text, flags=re.MULTILINE)) == sorted(SETTINGS)


def test_the_ten_that_users_set_first_are_shown_first_and_the_rest_by_section() -> None:
    assert len(FIRST) == 10
    assert [row.path for row in shown_rows(load(environ={}))[:10]] == list(FIRST)
    assert re.findall(r"^#([\w.]+) = ", config.template(), flags=re.MULTILINE)[:10] == list(FIRST)
    heading, *sections = config.render(load(environ={}))
    assert heading == "the ten to begin with"
    assert [each.partition(":")[0] for each in sections] == list(SECTIONS)


def test_the_table_shows_every_setting_once_with_its_source() -> None:
    rows = shown_rows(load(environ={}, sets=["serve.port=1"], flags={"--rl-buffer-dir": "runs"}))
    assert sorted(row.path for row in rows) == sorted(SETTINGS)
    assert ("serve.port", "1", "--set") in rows
    assert ("run.dir", literal(Path("runs").absolute()), "flag --rl-buffer-dir") in rows
    assert ("serve.api_key", "(not set)", "default") in rows
    assert ("train.lora.alpha", "32.0", "default") in rows


def test_the_json_is_plain_and_whole() -> None:
    shown = json.loads(json.dumps(config.as_json(load(environ={"OPENCLAW_API_KEY": "one"}, sets=["gpus.train=0,1"]))))
    assert shown["config"]["serve"]["api_key"] == "(set)"
    assert shown["config"]["train"]["lora"]["rank"] == 16
    assert shown["config"]["gpus"]["train"] == [0, 1]
    assert shown["sources"]["serve.api_key"] == "environment OPENCLAW_API_KEY"
    assert shown["notes"] == ["environment OPENCLAW_API_KEY is taken for serve.api_key"]
