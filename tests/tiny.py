"""Small random models, the same on each call, and a tokenizer of words to go with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

VOCABULARY = 61
WORDS = ["<unk>", "<s>", "</s>", "system", "user", "assistant", "\n", *(f"w{i}" for i in range(VOCABULARY - 7))]
TEMPLATE = (
    "{% for m in messages %}{{ '<s> ' + m.role + ' ' + m.content + ' </s> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s> assistant' }}{% endif %}"
)


def random_model(shape: str, *, seed: int = 0, **sizes: Any) -> Any:
    """A model of this shape (llama, qwen2, qwen3 ...) with weights as its configuration draws them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(shape, **sizes)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def tiny(shape: str, *, seed: int = 0, std: float = 0.25, **more: Any) -> Any:
    """Two layers over the words below, wide enough for attention to matter."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": shape == "llama",
        **({"head_dim": 8} if shape == "qwen3" else {}),
    }
    model = random_model(shape, seed=seed, **{**sizes, **more})
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            nn.init.normal_(parameter, std=std)
    return model


def save_tiny(folder: Path, shape: str = "llama", *, words: Sequence[str] = ()) -> str:
    """A model and its tokenizer as a user would have them on disk; ``words`` take the place of the last of its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = [*WORDS[: VOCABULARY - len(set(words))], *dict.fromkeys(words)]
    pieces = Tokenizer(models.WordLevel({word: at for at, word in enumerate(known)}, unk_token="<unk>"))
    pieces.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="</s>", chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
    tiny(shape).save_pretrained(folder)
    return str(folder)


def save_classifier(
    folder: Path, lines: list[tuple[str, int]], *, labels: tuple[str, ...] = ("negative", "positive"), steps: int = 0
) -> str:
    """A small sequence-classification model over the words of ``lines``, fitted to them for so many steps."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    pieces = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}, unk_token="[UNK]"))
    pieces.normalizer = normalizers.Lowercase()
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    words = dict.fromkeys(word for text, _ in lines for word, _ in pieces.pre_tokenizer.pre_tokenize_str(text.lower()))
    vocabulary = {word: at for at, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    pieces.model = models.WordLevel(vocabulary, unk_token="[UNK]")
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="[PAD]", unk_token="[UNK]")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    names = dict(enumerate(labels))
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, id2label=names, **sizes)
    model = BertForSequenceClassification(config)
    _fit(model, tokenizer, lines, steps)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


def _fit(model: Any, tokenizer: Any, lines: list[tuple[str, int]], steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    texts, classes = zip(*lines, strict=True)
    inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=64, return_tensors="pt")
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(**inputs, labels=torch.tensor(classes)).loss.backward()
        optimizer.step()
    model.eval()
