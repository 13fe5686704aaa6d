"""The tokenizer without torch gives what the one of `transformers` gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.engines import write_engine_model

from openclaw_rl.backends.hf.plain_tokenizer import load_plain_tokenizer
from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.errors import ModelRefused
from openclaw_rl.types import Message, Prompt, Tool, ToolCall

TEMPLATE = """{%- if tools %}{{ tools | tojson(indent=1) }}{% endif %}
{%- for m in messages %}
{%- if m.role == "system" and not loop.first %}{{ raise_exception("late") }}{% endif %}
{%- if m.role == "tool" %}{% continue %}{% endif %}
<|im_start|>{{ m.role }}
{% generation %}{{ m.content }}{% endgeneration %}{% if m.thinking %}[{{ m.thinking }}]{% endif %}
{%- for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|im_end|>{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"""
CALL = ToolCall(id="c1", name="weather", arguments='{"city": "Zürich", "<tag>": 1}')
PROMPTS = [
    Prompt(messages=(Message(role="user", content="Hi <|im_end|> there, naïve 🙂\r\n\ttab"),)),
    Prompt(
        messages=(
            Message(role="system", content="Be kind."),
            Message(role="user", content="Weather?"),
            Message(role="assistant", content="", reasoning="they ask", tool_calls=(CALL,)),
            Message(role="tool", content="rain", tool_call_id="c1"),
        ),
        tools=(Tool(name="weather", description="a & b", parameters={"type": "object"}),),
        template={"enable_thinking": False},
        opening="<tool_call>",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["own", "every feature"])
@pytest.mark.parametrize("which", ["toy", "embedded"])
def test_it_gives_the_ids_that_transformers_gives(tmp_path: Path, which: str, template: str | None) -> None:
    from openclaw_rl import config
    from openclaw_rl.backends.hf.finding import find
    from openclaw_rl.backends.hf.models import load_tokenizer

    folder = write_engine_model(tmp_path / "toy")
    if which == "embedded":
        folder, _ = find("embedded", cache_dir=config.cache_dir(), progress=print)
    theirs: Any = ChatTemplate(load_tokenizer(folder, chat_template=template))
    ours = ChatTemplate(load_plain_tokenizer(folder, chat_template=template))
    assert (ours.end, ours.ends) == (theirs.end, theirs.ends)
    for prompt in PROMPTS:
        ids = ours.encode(prompt)
        assert ids == theirs.encode(prompt)
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.tokenize("né <|im_end|>") == theirs.tokenize("né <|im_end|>")


def test_a_prompt_is_rendered_without_torch(tmp_path: Path) -> None:
    folder = write_engine_model(tmp_path / "toy")
    code = (
        "import sys; from pathlib import Path\n"
        "from openclaw_rl.backends.engines import policy as factories\n"
        "from openclaw_rl.backends.hf.prompts import read_model\n"
        "from openclaw_rl.types import Message, Prompt\n"
        "files = read_model(sys.argv[1], cache_dir=Path('.'), chat_template=None, tool_format=None, progress=print)\n"
        "print(len(files.chat.encode(Prompt(messages=(Message(role='user', content='hi'),)))))\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["21", "[]"]


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    folder = write_engine_model(tmp_path / "toy")
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelRefused, match="has no chat template"):
        load_plain_tokenizer(folder)
