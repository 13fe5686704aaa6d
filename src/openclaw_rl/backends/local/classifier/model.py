"""A sequence-classification model and its tokenizer: an exchange in, a classification out."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from openclaw_rl.backends.hf.finding import find, inspect
from openclaw_rl.backends.hf.folder_checks import loading
from openclaw_rl.backends.hf.models import available, check_fits, load, pick_device, pick_dtype
from openclaw_rl.backends.local.classifier.messages import (
    ClassifierArgs,
    ClassifierReady,
    ClassifyRequest,
    LabelFitArgs,
    label_roles,
)
from openclaw_rl.backends.local.training.model import linear_layers
from openclaw_rl.errors import ModelRefused
from openclaw_rl.ports import ClassifierOpinion, LabelledText
from openclaw_rl.text import head_and_tail

LONGEST = 4096
"""longest exchange in tokens, even if the model takes more"""
SPARE = 24
"""tokens for the roles' names and the special tokens around the text"""
ELLIPSIS = 3
"""tokens that the mark of a cut takes at most"""


class ClassifierModel:
    """Loads the model in ``args``; raises `ModelRefused` for ambiguous labels or a model that does not fit."""

    def __init__(self, args: ClassifierArgs, progress: Callable[[str], None]) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._args = args
        place = pick_device(args.device)
        cache = Path(args.cache_dir)
        folder, name = find(args.model, cache_dir=cache, progress=progress)
        weights = inspect(folder)
        kind = pick_dtype(args.dtype, place, cache, parameters=weights.parameters)
        check_fits(name, weights.parameters * kind.itemsize, available(place), kind=kind, place=place)
        progress(f"loading {name}: {weights.parameters / 1e6:,.0f} million parameters")
        with loading(folder):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            loaded = AutoModelForSequenceClassification.from_pretrained(
                folder, dtype=kind, local_files_only=True, trust_remote_code=False
            )
        self._model: Any = loaded.to(place).eval().requires_grad_(False)
        labels = [self._model.config.id2label[at] for at in range(self._model.config.num_labels)]
        self._roles = label_roles(labels, positive=args.positive, neutral=args.neutral, name=name)
        self._limit = self._most_tokens()
        self.facts = ClassifierReady(
            name=name,
            base=f"{name}-{weights.identity}",
            device=str(place),
            dtype=str(kind).removeprefix("torch."),
            memory=weights.parameters * kind.itemsize,
        )

    @torch.inference_mode()
    def classify(self, request: ClassifyRequest) -> ClassifierOpinion:
        """Classify one exchange, cut to the model's limit."""
        hypothesis = self._args.hypothesis if self._roles.infers else None
        room = self._limit - SPARE - (len(self._ids(hypothesis)) if hypothesis else 0)
        text = self._text(request, max(room, 16))
        inputs = self._tokenizer(text, hypothesis, truncation=True, max_length=self._limit, return_tensors="pt")
        logits = self._model(**inputs.to(self._model.device)).logits[0].float()
        chances = torch.sigmoid(logits) if len(logits) == 1 else torch.softmax(logits, dim=-1)
        if len(logits) == 1:
            return ClassifierOpinion(positive=float(chances[0]), neutral=0.0)
        return self._roles.classification(chances.tolist())

    def _text(self, request: ClassifyRequest, room: int) -> str:
        """Return the input text: half the room is for the following message, the remainder for request and reply."""
        if self._args.reads == "message":
            return self._cut(request.after, room)
        after = self._cut(request.after, room // 2)
        remaining = room - len(self._ids(after))
        request_text = self._cut(request.request, remaining // 2)
        reply = self._cut(request.reply, remaining - len(self._ids(request_text)))
        return f"User: {request_text}\nAssistant: {reply}\nUser: {after}"

    def _cut(self, text: str, room: int) -> str:
        """Keep a text's head and tail if it is longer than ``room`` tokens; nothing if there is no room."""
        ids = self._ids(text)
        if len(ids) <= room:
            return text
        room -= ELLIPSIS
        if room < 2:
            return ""
        head, tail = ids[: room - room // 2], ids[len(ids) - room // 2 :]
        return f"{self._tokenizer.decode(head)} … {self._tokenizer.decode(tail)}"

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _most_tokens(self) -> int:
        """Return the limit of position embeddings and tokenizer; some architectures reserve two positions."""
        positions = getattr(self._model.config, "max_position_embeddings", None) or LONGEST
        pad = getattr(self._model.config, "pad_token_id", None)
        spent = (pad or 0) + 1 if self._model.config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
        return int(min(LONGEST, positions - spent, self._tokenizer.model_max_length))


# An adapter that answers texts with one of a few words: fitted to labelled texts, read from the words' log-probs.
#
# The words' log-probs follow the end of the text, so an engine that serves the base needs one scoring call.

VOCABULARY_WEIGHT = 0.05
"""weight of the loss over the whole vocabulary: it keeps the words among the likeliest, so one scoring call returns
them"""
BATCH_TOKENS = 8_192
"""tokens per batch at most: longer texts get smaller batches, so that the longest text does not determine memory"""
Examples = Sequence[tuple[int, list[int]]]


class LabelAdapter:
    """A model with LoRA layers, and the tokens whose log-probs are the answer."""

    def __init__(self, args: LabelFitArgs, progress: Callable[[str], None]) -> None:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(args.seed)
        self.args, self._progress = args, progress
        loaded = load(
            args.model, cache_dir=Path(args.cache_dir), device=args.device, dtype=args.dtype, progress=progress
        )
        self.base = loaded.base
        self._tokenizer, self._device = loaded.tokenizer, loaded.device
        self._labels = torch.tensor(label_tokens(loaded.tokenizer, args.words, name=loaded.name), device=self._device)
        config = LoraConfig(
            r=args.rank,
            lora_alpha=2 * args.rank,
            lora_dropout=args.dropout,
            target_modules=linear_layers(loaded.model),
            task_type="CAUSAL_LM",
        )
        self._wrapped = get_peft_model(loaded.model, config)
        self._model = self._wrapped.get_base_model()
        if self._device.type == "cuda":  # autocast does it: a float32 input first costs half a step's kernels
            for layer in self._wrapped.modules():
                if hasattr(layer, "cast_input_dtype_enabled"):
                    layer.cast_input_dtype_enabled = False

    def fit(self, texts: Sequence[LabelledText]) -> None:
        """Minimise cross-entropy over the words at the last token; some texts, chosen at random, lack their context."""
        args, rng = self.args, random.Random(self.args.seed)
        trained = [parameter for parameter in self._wrapped.parameters() if parameter.requires_grad]
        optimiser = torch.optim.AdamW(trained, lr=args.lr, weight_decay=0.01)
        full, bare = self._encoded([text.parts for text in texts]), self._encoded([text.bare for text in texts])
        total = math.ceil(args.epochs * len(list(batches(list(enumerate(full)), args.batch, random.Random(0)))))
        rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: schedule(step, total))
        weights = label_weights(texts, len(args.words), temper=args.temper).to(self._device)
        self._wrapped.train()
        step, begun = 0, time.monotonic()
        while step < total:
            examples = [(at, bare[at] if rng.random() < args.drop else full[at]) for at in range(len(texts))]
            for batch in batches(examples, args.batch, rng):
                target = torch.tensor([texts[at].label for at, _ in batch], device=self._device)
                logits = self._logits([tokens for _, tokens in batch])
                loss = functional.cross_entropy(
                    logits[:, self._labels], target, weight=weights, label_smoothing=args.smoothing
                ) + VOCABULARY_WEIGHT * functional.cross_entropy(logits, self._labels[target])
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(trained, 1.0)
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
                rate.step()
                step += 1
                if step % 50 == 0 or step == total:
                    self._progress(self._pace(step, total, loss.item(), time.monotonic() - begun))
                if step == total:
                    return

    def _pace(self, step: int, total: int, loss: float, seconds: float) -> str:
        remaining = seconds / step * (total - step)
        return f"step {step} of {total}, loss {loss:.3f}, about {remaining:.0f} s left"

    @torch.no_grad()
    def read(self, texts: Sequence[LabelledText], *, bare: bool = False) -> list[list[float]]:
        """Return the words' log-probs, normalised among the words, for each text."""
        self._wrapped.eval()
        examples = list(enumerate(self._encoded([text.bare if bare else text.parts for text in texts])))
        rows: list[list[float]] = [[] for _ in texts]
        for batch in batches(examples, 2 * self.args.batch, None):
            logits = self._logits([tokens for _, tokens in batch])[:, self._labels].log_softmax(-1)
            for (at, _), row in zip(batch, logits.tolist(), strict=True):
                rows[at] = row
        return rows

    def save(self, folder: Path) -> None:
        """Save float16 safetensors with adapter_config.json, without the base's local path."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        state = get_peft_model_state_dict(self._wrapped)
        tensors = {key: value.half().cpu().contiguous() for key, value in state.items()}
        save_file(tensors, folder / "adapter_model.safetensors")
        config = self._wrapped.peft_config["default"]
        config.base_model_name_or_path, config.inference_mode = None, True
        config.save_pretrained(folder)

    def _encoded(self, texts: Sequence[Sequence[tuple[str, int]]]) -> list[list[int]]:
        """Return each text's tokens: every part is encoded by itself and cut to its limit."""
        different = list({text for parts in texts for text, _ in parts})
        tokens = dict(zip(different, self._tokenizer(different, add_special_tokens=False)["input_ids"], strict=True))
        return [[token for text, most in parts for token in head_and_tail(tokens[text], most)] for parts in texts]

    def _logits(self, batch: Sequence[list[int]]) -> torch.Tensor:
        """Return logits over the whole vocabulary at each text's last token `[B, V]`."""
        longest = max(len(tokens) for tokens in batch)
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in batch], device=self._device)
        last = torch.tensor([len(tokens) - 1 for tokens in batch], device=self._device)
        mask = torch.arange(longest, device=self._device) <= last[:, None]
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self._device.type == "cuda"):
            hidden = self._model.base_model(input_ids=ids, attention_mask=mask.long(), use_cache=False)
            rows = hidden.last_hidden_state[torch.arange(len(batch), device=self._device), last]
            logits: torch.Tensor = self._model.get_output_embeddings()(rows).float()
        return logits


def fit_labels(
    args: LabelFitArgs,
    *,
    texts: Sequence[LabelledText],
    held_out: Sequence[LabelledText],
    folder: Path,
    progress: Callable[[str], None],
) -> tuple[str, list[list[float]]]:
    """Fit and save to ``folder``; return the base's identity, and the adapter's log-probs for ``held_out``."""
    adapter = LabelAdapter(args, progress)
    adapter.fit(texts)
    progress(f"classifying {len(held_out):,} held-out messages")
    rows = adapter.read(held_out)
    adapter.save(folder)
    return adapter.base, rows


def label_tokens(tokenizer: Any, words: Sequence[str], *, name: str) -> list[int]:
    """Return each word's first token; raise `ModelRefused` unless they differ."""
    tokens = [tokenizer.encode(f" {word}", add_special_tokens=False)[0] for word in words]
    if len(set(tokens)) != len(words):
        pairs = ", ".join(f"{word} {token}" for word, token in zip(words, tokens, strict=True))
        raise ModelRefused(f"the tokenizer of {name} begins two answers with the same token: {pairs}")
    return tokens


def label_weights(texts: Sequence[LabelledText], labels: int, *, temper: float) -> torch.Tensor:
    """Weight rarer labels higher: the inverse frequency to the power ``temper``, one on average over the texts."""
    counts = Counter(text.label for text in texts)
    raw = torch.tensor([(len(texts) / counts[label]) ** temper if counts[label] else 0.0 for label in range(labels)])
    mean = sum(float(raw[label]) * count for label, count in counts.items()) / len(texts)
    return raw / mean


def batches(examples: Examples, size: int, rng: random.Random | None) -> Iterable[Examples]:
    """Group similarly long texts into batches, in random order if there is an ``rng``."""
    order = list(examples)
    if rng is not None:
        rng.shuffle(order)
    pool = max(1, size * 32 if rng is not None else len(order))
    groups: list[Examples] = []
    for start in range(0, len(order), pool):
        groups += _cut(sorted(order[start : start + pool], key=lambda example: len(example[1])), size)
    if rng is not None:
        rng.shuffle(groups)
    return groups


def _cut(near: Examples, size: int) -> Iterator[Examples]:
    """Split into runs of at most ``size`` texts and `BATCH_TOKENS` tokens, including padding."""
    begin = 0
    for at, (_, tokens) in enumerate(near):
        if at > begin and (at - begin == size or (at - begin + 1) * len(tokens) > BATCH_TOKENS):
            yield near[begin:at]
            begin = at
    yield near[begin:]


def schedule(step: int, total: int) -> float:
    """Return the rate factor: linear up over the first 6 %, then a cosine down to a tenth."""
    warm = max(1, int(total * 0.06))
    if step < warm:
        return (step + 1) / warm
    progress = min(1.0, (step - warm) / max(1, total - warm))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))
