"""Trial of a chat template, an untrusted program, in a process that can be killed, before its first use.

    python -m openclaw_rl.backends.hf.template_trial < TEMPLATE

jinja2's sandbox protects files and Python's objects from a template, but not against loops: two nested loops may
never end. A loop that waits for certain words is not detected here.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from openclaw_rl.errors import ModelRefused

SECONDS: Final = 5
"""processor time for three short messages, which take a millisecond"""
MEMORY: Final = 1 << 30
_UNSAFE: Final = 3
_MESSAGES: Final = (
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "Well."},
    {"role": "user", "content": "Good."},
)


@lru_cache(maxsize=64)
def try_template(template: str) -> None:
    """Raise `ModelRefused` for a template that does not finish, or accesses forbidden objects."""
    command = [sys.executable, "-m", __name__]
    try:
        trial = subprocess.run(
            command, input=template.encode("utf-8", "replace"), capture_output=True, check=False, timeout=12 * SECONDS
        )
    except subprocess.TimeoutExpired:
        trial = None
    if trial is not None and trial.returncode == _UNSAFE:
        raise _refused(
            f"accesses objects that no template needs ({trial.stderr.decode(errors='replace')[-200:].strip()})"
        )
    if trial is None or trial.returncode != 0:
        raise _refused(f"does not finish within {SECONDS} seconds and {MEMORY >> 20} MiB")


def _refused(what: str) -> ModelRefused:
    return ModelRefused(
        f"the model's chat template {what}", remedy="set chat_template to a template of your own, or choose another"
    )


def _render(template: str) -> None:
    from jinja2.exceptions import SecurityError

    names: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None}
    try:
        compiled(template).render(**names, messages=_MESSAGES, add_generation_prompt=True)
    except SecurityError as error:
        sys.stderr.write(str(error))
        sys.exit(_UNSAFE)
    except MemoryError:
        sys.exit(1)
    except Exception:  # it may need other messages: its errors are refused with the request
        return


def compiled(template: str) -> Any:
    """Compile a template in a sandbox, with chat templates' usual filters and functions."""
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """``{% generation %}`` marks an assistant's words; it writes nothing."""

        tags = {"generation"}  # noqa: RUF012 (jinja's own way)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON for a template: without escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    _render(sys.stdin.read())
