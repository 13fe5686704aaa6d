"""A chat template is a program of a stranger: it is tried in a process that can be ended, before it is used.

    python -m openclaw_rl.backends.hf.template_trial < TEMPLATE

The sandbox of jinja2 keeps a template from files and from Python's objects, not from loops: of two loops inside each
other nobody sees the end. One that waits for certain words to begin is not seen here.
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
"""of processor time for three short messages, which take a millisecond"""
MEMORY: Final = 1 << 30
_UNSAFE: Final = 3
_MESSAGES: Final = (
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "Well."},
    {"role": "user", "content": "Good."},
)


@lru_cache(maxsize=64)
def try_template(template: str) -> None:
    """Raise ModelRefused for a template that does not come to an end, or reaches for what it may not have."""
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, input=template.encode("utf-8", "replace"), capture_output=True, check=False, timeout=12 * SECONDS
        )
    except subprocess.TimeoutExpired:
        done = None
    if done is not None and done.returncode == _UNSAFE:
        raise _refused(f"reaches for what no template needs ({done.stderr.decode(errors='replace')[-200:].strip()})")
    if done is None or done.returncode != 0:
        raise _refused(f"does not come to an end within {SECONDS} seconds and {MEMORY >> 20} MiB")


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
    except Exception:  # it may want other messages: what it makes of a request is refused with the request
        return


def compiled(template: str) -> Any:
    """A template with the filters and functions that templates of the field count on, in a sandbox."""
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """``{% generation %}`` marks what an assistant said; it writes nothing."""

        tags = {"generation"}  # noqa: RUF012 (jinja's own way)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made.from_string(template)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates want it: nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    _render(sys.stdin.read())
