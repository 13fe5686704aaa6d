"""A sequence-classification model and its tokenizer: an exchange in, a classification out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.backends.hf.finding import find
from openclaw_rl.backends.hf.folder_checks import loading
from openclaw_rl.backends.hf.memory import available
from openclaw_rl.backends.hf.models import check_fits, pick_device, pick_dtype
from openclaw_rl.backends.hf.weights import inspect
from openclaw_rl.backends.local.classifier.labels import label_roles
from openclaw_rl.backends.local.classifier.messages import ClassifierArgs, ClassifierReady, ClassifyRequest
from openclaw_rl.ports import ClassifierOpinion

LONGEST = 4096
"""tokens of an exchange that are read, where the model takes more"""
SPARE = 24
"""tokens for the roles' names and the special tokens around the text"""


class ClassifierModel:
    """Loads what ``args`` names; raises ModelRefused for labels that cannot be told apart and what does not fit."""

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
        """One exchange, cut to what the model takes."""
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
        """What is read: half of the room is for what came after, what it leaves for request and reply."""
        if self._args.reads == "message":
            return self._cut(request.after, room)
        after = self._cut(request.after, room // 2)
        rest = room - len(self._ids(after))
        asked = self._cut(request.request, rest // 2)
        reply = self._cut(request.reply, rest - len(self._ids(asked)))
        return f"User: {asked}\nAssistant: {reply}\nUser: {after}"

    def _cut(self, text: str, room: int) -> str:
        """The head and the tail of a text that is longer than ``room`` of this model's tokens."""
        ids = self._ids(text)
        if len(ids) <= room:
            return text
        head, tail = ids[: room - room // 2], ids[len(ids) - room // 2 :]
        return f"{self._tokenizer.decode(head)} … {self._tokenizer.decode(tail)}"

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return found

    def _most_tokens(self) -> int:
        """What position embeddings and tokenizer both allow; some shapes keep two positions for themselves."""
        positions = getattr(self._model.config, "max_position_embeddings", None) or LONGEST
        pad = getattr(self._model.config, "pad_token_id", None)
        spent = (pad or 0) + 1 if self._model.config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
        return int(min(LONGEST, positions - spent, self._tokenizer.model_max_length))
