"""Reads the settings from their sources: presets, the environment, one TOML file, the command line.

    defaults < preset < known environment names < file < OPENCLAW_RL__SECTION__SETTING < --set and flags

A later rank has priority. Every value is checked, even one that a later rank replaces; one `ConfigError` lists all
faults, one line each. Secrets are `SecretStr` and appear in no message, table or text from this module. `settings`
declares the tree, `names` the known names, and `shown` renders the settings for users.
"""

from __future__ import annotations

import os
import shlex
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import platformdirs
from pydantic import ValidationError

from openclaw_rl.config import names, renamed
from openclaw_rl.config.names import ENVIRONMENT, FAMILIES, FLAGS, GROUPS, SECTIONS, SETTINGS, Setting
from openclaw_rl.config.renamed import refusal
from openclaw_rl.config.settings import Config
from openclaw_rl.config.shown import Resolved, brief, get, literal
from openclaw_rl.config.values import plugin_file
from openclaw_rl.errors import ConfigError

DEFAULT_FILE: Final = Path("openclaw-rl.toml")
PREFIX: Final = "OPENCLAW_RL__"
_PRESETS: Final = Path(__file__).parent / "presets"


def environment(name: str) -> str | None:
    """Return an environment variable's value; None if it is absent or empty."""
    return os.environ.get(name) or None


def key_in(name: str) -> str:
    """Return the key in an environment variable. Raises ConfigError if the variable is absent or empty."""
    key = environment(name)
    if key is None:
        raise ConfigError(f"the environment variable {name} is not set", remedy="export it, or name another")
    return key


def cache_dir() -> Path:
    """Return the folder for converted models: ``OPENCLAW_RL_CACHE``, else the user's cache folder."""
    override = environment("OPENCLAW_RL_CACHE")
    return (
        Path(override).expanduser().absolute()
        if override
        else platformdirs.user_cache_path("openclaw-rl", appauthor=False)
    )


def presets() -> tuple[str, ...]:
    """Return the names of the shipped presets."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.toml")))


def load(
    *,
    file: Path | None = None,
    preset: str | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, str | bool | float | int] | None = None,
    values: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Return the settings from all their sources; raises a ConfigError that lists every fault.

    ``preset`` may hold several names with commas between them; a later one has priority. ``file`` None selects
    openclaw-rl.toml in the working directory, if it exists. ``flags`` are keyed by their names (``{"--port": 8000}``)
    and apply after ``sets``. ``values`` are keyed by dotted paths, have their final types, and apply last.
    """
    draft = _Draft()
    environ = os.environ if environ is None else environ
    file = DEFAULT_FILE if file is None and DEFAULT_FILE.exists() else file
    for name in preset.split(",") if preset is not None else ():
        _take_preset(draft, name.strip())
    env_names = _take_known(draft, environ)
    if file is not None:
        _take_file(draft, file, f"file {file}")
    for name in sorted(variable for variable in environ if variable.startswith(PREFIX)):
        path = name.removeprefix(PREFIX).lower().replace("__", ".")
        draft.take(path, environ[name].strip(), f"environment {name}", text=True)
    _take_sets(draft, sets)
    _take_flags(draft, flags or {})
    for path, value in (values or {}).items():
        draft.take(path, value, "argument")
    return draft.resolve(env_names, file, environ)


class _Given(NamedTuple):
    """A checked value and its source."""

    value: Any
    source: str


class _Draft:
    """Settings read so far: the value with priority for each setting, the faults, the notes for the user."""

    def __init__(self) -> None:
        self.given: dict[str, _Given] = {}
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.folder: Path | None = None
        """folder with the file that is being read"""

    def take(self, path: str, raw: Any, source: str, *, text: bool = False) -> None:
        """Set a setting or a section to ``raw``; ``text`` True marks typed text without a type."""
        table = SETTINGS.get(path.rpartition(".")[0])
        if path in SECTIONS:
            self.take_section(path, _parsed(raw) if text else raw, source)
        elif path in SETTINGS:
            self._take_setting(SETTINGS[path], raw, source, text=text)
        elif table and table.kind == "table":
            self.given[path] = _Given(_parsed(raw) if text else raw, source)
        else:
            why = refusal(path) or names.unknown(path, (*SECTIONS, *SETTINGS))
            self.problems.append(f"{why} ({source})")

    def take_section(self, path: str, table: Any, source: str) -> None:
        """Set every setting in a table; ``path`` is empty for the whole tree."""
        if not isinstance(table, Mapping):
            inside = next(name for name in SETTINGS if name.startswith(f"{path}."))
            why = f"{path} ({source}): is a section, not a value; set a setting in it, such as {inside}"
            self.problems.append(f"{moved} ({source})" if (moved := refusal(path)) else why)
            return
        for name, value in table.items():
            self.take(f"{path}.{name}" if path else name, value, source)

    def _take_setting(self, setting: Setting, raw: Any, source: str, *, text: bool) -> None:
        if self.folder is not None:
            for item in raw if isinstance(raw, list) else [raw]:
                self._refuse_ambiguous(setting, item if setting.holds_paths else plugin_file(item), self.folder, source)
        value = self.check(setting, _typed(setting, raw) if text else raw, source)
        if setting.kind == "table" and value is not None:
            self.given |= {f"{setting.path}.{name}": _Given(item, source) for name, item in value.items()}
        elif value is not None or setting.optional:
            self.given[setting.path] = _Given(value, source)

    def _refuse_ambiguous(self, setting: Setting, path: Any, folder: Path, source: str) -> None:
        """Refuse a path that also exists relative to its file's folder, though it starts at the working directory."""
        if not isinstance(path, str) or not path or Path(path).expanduser().is_absolute():
            return
        here, beside = Path(path).absolute(), folder / path
        if beside.exists() and beside.resolve() != here.resolve():
            self.problems.append(
                f"{setting.path} = {literal(path)} ({source}): means two things: a relative path starts at the working "
                f"directory, which makes it {here}, but {beside} is there beside the file; write it in full"
            )

    def check(self, setting: Setting, value: Any, source: str) -> Any:
        """Return the validated value; None, with a recorded fault, if it is invalid."""
        try:
            return getattr(setting.section.model_validate({setting.name: value}), setting.name)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
        what = str(first["ctx"]["error"]) if first["type"] == "value_error" else f"must be {setting.expects}"
        display = "(hidden)" if setting.hidden else brief(value)
        self.problems.append(f"{setting.path} = {display} ({source}): {what}")
        return None

    def resolve(self, known: Mapping[str, str], file: Path | None, environ: Mapping[str, str]) -> Resolved:
        """Return the finished tree; raises a ConfigError with every fault."""
        self._refuse()
        config = Config.model_validate(_nested({path: entry.value for path, entry in self.given.items()}))
        sources = dict.fromkeys(SETTINGS, "default") | {path: entry.source for path, entry in self.given.items()}
        self.problems += [
            f"{path} = {literal(get(config, path))} ({sources[path]}): {what}" for path, what in _contradictions(config)
        ]
        self.problems += renamed.problems(environ, model=config.policy.model)
        self._refuse()
        answers = renamed.notes(environ, model=config.policy.model)
        notes = (*self.notes, *_known_notes(known, sources), *answers, *_advice(config, sources, file))
        return Resolved(config=config, sources=sources, notes=notes)

    def _refuse(self) -> None:
        if self.problems:
            raise ConfigError("\n".join(self.problems))


def _parsed(text: str) -> Any:
    """Parse typed text as a TOML value, or return it unchanged."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _typed(setting: Setting, text: str) -> Any:
    """Convert typed text to the setting's kind: ``a,b`` becomes a list, text stays text even if it looks numeric."""
    value = _parsed(text)
    if setting.kind in ("text", "path", "secret", "choice"):
        return value if isinstance(value, str) else text
    if isinstance(value, str) and (setting.kind == "list" or (setting.kind == "gpus" and "," in value)):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _take_preset(draft: _Draft, preset: str) -> None:
    if preset in presets():
        _take_file(draft, _PRESETS / f"{preset}.toml", f"preset {preset}")
    else:
        draft.problems.append(f"{names.unknown(preset, presets())} (preset); known: {', '.join(presets())}")


def _take_file(draft: _Draft, file: Path, source: str) -> None:
    draft.folder = file.parent.absolute()
    try:
        draft.take_section("", tomllib.loads(file.read_text("utf-8")), source)
    except FileNotFoundError:
        draft.problems.append(f"{source}: there is no such file; write one with: openclaw-rl init")
    except OSError as error:
        draft.problems.append(f"{source}: cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        draft.problems.append(f"{source}: is not UTF-8 text (at byte {error.start})")
    except (ValueError, RecursionError) as error:
        draft.problems.append(f"{source}: is not valid TOML: {error}")
    draft.folder = None


def _take_known(draft: _Draft, environ: Mapping[str, str]) -> dict[str, str]:
    """Read the known environment names; return the setting for each name that is set."""
    first: dict[str, tuple[str, Any]] = {}
    for name, path, raw in _known_values(draft, environ):
        setting = SETTINGS[path]
        value = draft.check(setting, _typed(setting, raw), f"environment {name}")
        winner, taken = first.setdefault(path, (name, value))
        if winner == name and value is not None:
            draft.given[path] = _Given(value, f"environment {name}")
        elif value != taken:
            draft.notes.append(f"environment {name} is not taken: {winner} sets {path} too, differs, and comes first")
    recognized = {*ENVIRONMENT, *renamed.STATED}
    for name in sorted(
        variable for variable in environ if variable.startswith(FAMILIES) and variable not in recognized
    ):
        draft.notes.append(f"environment {names.unknown(name, sorted(recognized))}")
    return {name: path for path, (name, _) in first.items()}


def _known_values(draft: _Draft, environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, setting and text for each known environment name that is not empty, the grouped names last."""
    for name, path in ENVIRONMENT.items():
        if text := environ.get(name, "").strip():
            yield name, path, text
    for group in GROUPS:
        for flag, text in _grouped(draft, group, environ.get(group, "")).items():
            yield f"{group} {flag}", FLAGS[flag].path, text


def _grouped(draft: _Draft, group: str, line: str) -> dict[str, str]:
    """Return the flags in a grouped name with their texts; the last one if a flag is repeated."""
    texts: dict[str, str] = {}
    try:
        words = shlex.split(line)[::-1]
    except ValueError as error:
        draft.problems.append(f"environment {group}: cannot be read as flags: {str(error).lower()}")
        return texts
    while words:
        name, separator, text = words.pop().partition("=")
        negative = FLAGS.get(name.replace("--no-", "--", 1))
        flag = FLAGS.get(name) or (negative if negative and negative.negative else None)
        if flag is None:
            draft.problems.append(f"{names.unknown(name, FLAGS)} (environment {group})")
            while words and not words[-1].startswith("--"):
                words.pop()
        elif flag.negative and not separator:
            texts[flag.name] = "true" if flag.name == name else "false"
        elif separator or (words and not words[-1].startswith("--")):
            texts[flag.name] = text if separator else words.pop()
        else:
            draft.problems.append(f"environment {group}: {name} needs a value")
    return texts


def _take_sets(draft: _Draft, sets: Sequence[str]) -> None:
    for item in sets:
        path, separator, text = item.partition("=")
        if separator:
            draft.take(path.strip(), text.strip(), "--set", text=True)
        else:
            draft.problems.append(f"--set {item!r}: needs a value, such as serve.port=8000")


def _take_flags(draft: _Draft, flags: Mapping[str, str | bool | float | int]) -> None:
    for name, value in flags.items():
        if flag := FLAGS.get(name):
            draft.take(flag.path, value, f"flag {name}", text=isinstance(value, str))
        else:
            draft.problems.append(f"{names.unknown(name, FLAGS)} (flag)")


def _contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the path and the fault for each pair of valid settings that contradict each other."""
    judge, train, gpus = config.judge, config.train, config.gpus
    if judge.llm.quorum is not None and judge.llm.quorum > judge.llm.votes:
        yield "judge.llm.quorum", f"must be at most judge.llm.votes, which is {judge.llm.votes}"
    if judge.hint_min > judge.hint_max:
        yield "judge.hint_min", f"must be at most judge.hint_max, which is {judge.hint_max}"
    if train.method in ("topk", "combine") and train.loss.w_rl == train.loss.w_opd == 0:
        yield "train.loss.w_rl", "must be above 0 when train.loss.w_opd is 0: nothing would be learned"
    shares = {name: getattr(gpus, name) for name in ("train", "rollout", "judge", "teacher")}
    counts = [share for share in shares.values() if isinstance(share, int)]
    if gpus.total is None:
        return
    if sum(counts) > gpus.total:
        yield "gpus.total", f"must be at least {sum(counts)}, the sum of the GPUs given out"
    for name, share in shares.items():
        if isinstance(share, tuple) and max(share) >= gpus.total:
            yield f"gpus.{name}", f"must name devices below gpus.total, which is {gpus.total}"


def _known_notes(known: Mapping[str, str], sources: Mapping[str, str]) -> Iterator[str]:
    for name, path in known.items():
        if sources[path] == f"environment {name}":
            yield f"environment {name} is taken for {path}"
        else:
            yield f"environment {name} is not taken: {sources[path]} sets {path}"


def _advice(config: Config, sources: Mapping[str, str], file: Path | None) -> Iterator[str]:
    """Yield advice on risky or ineffective settings."""
    secrets = [path for path, setting in SETTINGS.items() if setting.kind == "secret" and get(config, path) is not None]
    for path in secrets:
        if file and sources[path].startswith("file ") and _open_to_all(file):
            yield f"{path} is a secret and all users of this machine can read {file}: chmod 600 it"
        if sources[path] == "--set":
            yield f"{path} is a secret and was typed on the command line, where others can see it: use the environment"
    keys = config.serve.keys_file
    if keys and _open_to_all(keys):
        yield f"all users of this machine can read the keys in {keys}: chmod 600 it"
    if config.env.type is None:
        for path in (path for path in SETTINGS if path.startswith("env.") and sources[path] != "default"):
            yield f"{path} changes nothing: no environment is set (env.type, ENV_TYPE)"
    judge = config.judge
    if judge.models.score or judge.models.hints:
        override = "judge.custom" if judge.custom else f"judge.kind = {judge.kind}" if judge.kind == "rules" else None
        if override:
            yield f"judge.models changes nothing: {override} selects the judge"
        elif judge.llm.base_url:
            yield "judge.llm.base_url changes nothing: judge.models selects the judge"
    if sources["train.loss.eps_low"].endswith("--eps-clip") and sources["train.loss.eps_high"] == "default":
        yield f"--eps-clip sets the lower clip alone: the upper stays {config.train.loss.eps_high} (--eps-clip-high)"
    if config.gate.mode == "off":
        yield "gate.mode is off: every version is served unexamined, and only the live monitor or you can take it back"


def _open_to_all(file: Path) -> bool:
    return os.name == "posix" and file.exists() and bool(file.stat().st_mode & stat.S_IROTH)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted paths as a tree; an option's name may itself contain dots."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        owner = path if path in SETTINGS else next(setting for setting in SETTINGS if path.startswith(f"{setting}."))
        *sections, name = owner.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        if owner == path:
            place[name] = value
        else:
            place.setdefault(name, {})[path.removeprefix(f"{owner}.")] = value
    return tree
