"""The weights in training, an adapter on a base or a full model: loading, saving, and the teacher and base."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from typing import cast as typed

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from openclaw_rl.backends.hf.adapters import ADAPTER, MODEL
from openclaw_rl.backends.hf.models import load, pick_device, total
from openclaw_rl.backends.local.training.batch import Student
from openclaw_rl.backends.local.training.forward import compile_layers, enable_tree
from openclaw_rl.backends.local.training.head import Head, can_compile, logit_form
from openclaw_rl.backends.local.training.ranks import ALONE, Ranks, is_sharded, local, rows_of, shard_layers, whole
from openclaw_rl.backends.local.training.references import Net
from openclaw_rl.backends.local.training.settings import TrainerArgs
from openclaw_rl.errors import BackendError, ModelRefused

log = logging.getLogger(__name__)

Weights = dict[str, Tensor]
_CASTS = (torch.bfloat16, torch.float16)
_READS_WEIGHTS = frozenset({"mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h"})
"""models whose kernels read the weight of ``out_proj`` past an adapter, so that peft refuses an adapter there"""
_EXPERT_PARTS = {"gate", "gate_proj", "up_proj", "down_proj"}
_WHOLE = 0.25  # largest share of a rank's memory that frozen weights take before the ranks shard them
_LARGE = 1_000_000_000  # parameter count from which compiling the layers saves time within a few steps


class PolicyModel:
    """The model in training. ``tokenizer`` is the base's; ``note`` is the reason for no token tree, or None."""

    def __init__(self, settings: TrainerArgs, ranks: Ranks = ALONE) -> None:
        self.settings = settings
        self.ranks = ranks
        self.device = pick_device(settings.device)
        self.model, self.tokenizer = self._load(settings.model)
        self.compute = next(self.model.parameters()).dtype
        self._forms = {id(self.model): logit_form(self.model)}
        self.note = self._see_trees(self.model)
        self._wrapped: Any = None
        torch.manual_seed(settings.seed)
        if settings.lora:
            self._wrapped = add_adapter(self.model, settings, mixed=self._mixed())
        else:
            self._train_everything()
        self._shard(self.model)
        self._switches = adapter_layers(self.model)
        self.model.eval()  # the adapter's layers start in training mode
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self._initial = self.weights() if settings.lora else None
        if self._compiles():
            compile_layers(self.model)
        self._base = self._separate_base()
        self._other = self._teacher_model(settings.teacher_model) if settings.teacher_model else None

    def _load(self, model: str) -> tuple[Any, Any]:
        s = self.settings
        loaded = (s.loader or load)(
            model,
            cache_dir=Path(s.cache_dir),
            device=str(self.device) if self.ranks.count == 1 else "cpu",  # a model that does not fit may fit sharded
            dtype=s.dtype,
            progress=log.info,
            chat_template=s.chat_template,
        )
        return loaded.model.eval(), loaded.tokenizer

    def _see_trees(self, model: Any) -> str | None:
        return enable_tree(model) if self.settings.tree else "it is switched off"

    def _compiles(self) -> bool:
        large = self.device.type == "cuda" and sum(p.numel() for p in self.model.parameters()) >= _LARGE
        return large and can_compile() if self.settings.compile is None else self.settings.compile

    def _shard(self, model: Any) -> None:
        if self.ranks.mesh is None:
            return
        dtype = next(model.parameters()).dtype
        if all(p.requires_grad for p in model.parameters()) or self._divides_frozen(model):
            shard_layers(model, self.ranks, compute=self.compute if self._mixed() and dtype != self.compute else None)
        else:
            model.to(self.device)

    def _divides_frozen(self, model: Any) -> bool:
        """Return True if ranks shard frozen weights; whole copies need no communication."""
        if self.settings.shard_frozen is not None:
            return self.settings.shard_frozen
        size: int = sum(p.numel() * p.element_size() for p in model.parameters())
        room = self.ranks.least(total(self.device) // self.beside)  # all ranks shard them, or none
        return size > _WHOLE * room

    @property
    def beside(self) -> int:
        """Ranks that share one memory."""
        return self.ranks.count if self.device.type == "cpu" else 1

    def _train_everything(self) -> None:
        # half precision rounds small steps away: trained weights are kept in single precision
        self.model.to(torch.float32 if self.compute in _CASTS else self.compute)
        self.model.requires_grad_(True)

    def _frozen(self, model: str) -> Net:
        """Load another frozen model; whether it uses the tree is decided independently of the model in training."""
        return self._beside(self._load(model)[0])

    def _beside(self, model: Any) -> Net:
        model.requires_grad_(False)
        self._forms[id(model)] = logit_form(model)
        why = self._see_trees(model)
        self._shard(model)
        return self._net(model, tree=why is None)

    def _teacher_model(self, model: str) -> Net:
        """Load another model as the teacher; its token ids must mean the same as the policy's."""
        teacher, tokenizer = self._load(model)
        if why := vocabulary_difference(self.tokenizer, tokenizer):
            raise ModelRefused(
                f"the teacher {model} has another vocabulary than {self.settings.model}: {why}",
                remedy="give train.loss.teacher_model a model with the policy's tokenizer, or unset it",
            )
        return self._beside(teacher)

    def _separate_base(self) -> Net | None:
        """Load a second model as the base of a full tune; with an adapter, the base is the model without it."""
        s = self.settings
        needed = (
            s.compares_with_base
            or (s.teacher == "base" and s.teacher_model is None)
            or s.distillation_teacher == "base"
        )
        return self._frozen(s.model) if needed and not s.lora else None

    # --- student, teacher, base

    @property
    def width(self) -> int:
        """The hidden states' width."""
        return int(self.model.get_output_embeddings().weight.shape[1])

    @property
    def tree(self) -> bool:
        """True if a batch is computed as a tree."""
        return self.note is None

    def _net(
        self, model: Any, context: Callable[[], AbstractContextManager[Any]] = nullcontext, *, tree: bool | None = None
    ) -> Net:
        layer = model.get_output_embeddings()
        if not isinstance(layer, nn.Linear):
            raise ModelRefused(f"the head of {self.settings.model} is {type(layer).__name__}, not a linear layer")
        cast = self.compute if layer.weight.dtype != self.compute and self.device.type == "cuda" else None
        form = self._forms[id(model)]
        head = Head(weight=typed(nn.Parameter, layer.weight), bias=layer.bias, dtype=cast, form=form)
        sees = self.tree if tree is None else tree
        return Net(model=model, head=head, tree=sees, context=context, ranks=self.ranks)

    def student(self) -> Student:
        """Return the policy with its current weights."""
        dropout = self.settings.lora and self.settings.lora_dropout > 0
        return Student(net=self._net(self.model, self._inference), training=self._training, two_passes=dropout)

    def base(self) -> Net:
        """Return the untrained weights."""
        return self._base or self._net(self.model, self._without_adapter)

    def teacher(self, role: str, base: Net, *, ema: Weights | None, live: Weights | None = None) -> Net:
        """Return the weights that see the hints. ``live`` None: the policy's current weights."""
        if self._other is not None:
            return self._other
        roles: dict[str, Callable[[], Net]] = {
            "base": lambda: base,
            "live": lambda: self._net(self.model, lambda: self.lent(live or {})),
            "ema": lambda: self._net(self.model, lambda: self.lent(ema or {})),
        }
        return roles[role]()

    def served(self, average: Weights) -> Net:
        """Return the published weights, if these are an average."""
        return self._net(self.model, lambda: self.lent(average))

    def recompute(self, on: bool) -> None:
        """Switch recomputing layers in the backward pass, which saves memory, on or off."""
        on = on and self.model.supports_gradient_checkpointing
        if on and not self.model.is_gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        elif not on and self.model.is_gradient_checkpointing:
            self.model.gradient_checkpointing_disable()

    def _mixed(self) -> bool:
        return self.device.type == "cuda" and self.compute in _CASTS

    def _cast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", dtype=self.compute) if self._mixed() else nullcontext()

    @contextmanager
    def _inference(self) -> Iterator[None]:
        with self._cast():
            yield

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Enter training mode only if a module depends on it, because walking through all modules takes a while."""
        listens = self.model.is_gradient_checkpointing or (self.settings.lora and self.settings.lora_dropout > 0)
        if self.model.training != listens:
            self.model.train(listens)
        try:
            with self._cast():
                yield
        finally:
            if listens:
                self.model.eval()

    @contextmanager
    def _without_adapter(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._inference())
            stack.enter_context(switched_off(self._switches))
            yield

    @contextmanager
    def lent(self, weights: Weights) -> Iterator[None]:
        """Replace trained parameters temporarily."""
        before = {name: p.data for name, p in self.parameters.items() if name in weights and not is_sharded(p)}
        shards = {
            name: local(p.detach()).clone() for name, p in self.parameters.items() if name in weights and is_sharded(p)
        }
        try:
            for name, value in weights.items():
                self._lend(name, value.to(self.device))
            with self._inference():
                yield
        finally:
            for name, value in (before | shards).items():
                self._lend(name, value)

    @torch.no_grad()
    def _lend(self, name: str, value: Tensor) -> None:
        parameter = self.parameters[name]
        if is_sharded(parameter):  # the shards are gathered from this very memory
            local(parameter).copy_(value)
        else:
            parameter.data = value

    def forget_gradients(self) -> None:
        """Drop the trained parameters' gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    # --- from and to disk

    @torch.no_grad()
    def put(self, weights: Weights) -> None:
        """Set this rank's rows in the trained parameters."""
        if missing := self.parameters.keys() - weights.keys():
            raise BackendError(f"{len(missing)} weights are missing, {min(missing)!r} among them")
        for name, parameter in self.parameters.items():
            local(parameter).copy_(weights[name])

    def weights(self) -> Weights:
        """Copy this rank's rows in the trained parameters."""
        return {name: local(p.detach()).clone() for name, p in self.parameters.items()}

    def rows(self, weights: Weights) -> Weights:
        """Cut this rank's rows from whole parameters."""
        return {name: rows_of(p, weights[name], self.ranks) for name, p in self.parameters.items() if name in weights}

    def begin(self) -> Weights:
        """Return version 0's trained parameters."""
        if self._initial is not None:
            return self._initial
        if self._base is not None:
            base = {name: p.detach() for name, p in self._base.model.named_parameters()}
            divided = {name: local(p) for name, p in base.items() if is_sharded(p)}
            return divided | self.rows({name: p for name, p in base.items() if name not in divided})
        return self.rows(dict(self._load(self.settings.model)[0].named_parameters()))

    def read(self, directory: Path) -> Weights:
        """Read this rank's rows in the trained parameters from a version's directory."""
        path = directory / (ADAPTER if self._wrapped is not None else MODEL)
        if not path.exists():
            kind = "an adapter" if self._wrapped is not None else "a full model"
            raise BackendError(f"{directory} holds no {path.name}", remedy=f"its parent must be {kind} of this trainer")
        tensors = load_file(path)
        named = {_from_peft(name): value for name, value in tensors.items()} if self._wrapped is not None else tensors
        return self.rows(named)

    def write(self, directory: Path) -> None:
        """Write an adapter in peft's format, or a whole model that loads from its folder; the first rank writes it."""
        lora = self._wrapped is not None
        tensors: Weights = {}
        for name, parameter in self.parameters.items():  # one at a time: every rank helps to gather it
            rows = whole(parameter)
            if self.ranks.first:
                tensors[_to_peft(name) if lora else name] = rows.to("cpu", None if lora else self.compute).contiguous()
        if not self.ranks.first:
            return
        save_file(tensors, directory / (ADAPTER if lora else MODEL), metadata={"format": "pt"})
        if lora:
            self._wrapped.peft_config["default"].save_pretrained(directory)
        else:
            self.model.config.save_pretrained(directory)
            self.tokenizer.save_pretrained(directory)


def add_adapter(model: Any, args: TrainerArgs, *, mixed: bool = False) -> Any:
    """Add LoRA layers to ``model`` and freeze everything else; return peft's wrapper, which can switch them off.

    ``mixed`` means that passes run under autocast, which casts inputs already.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=args.lora_rank,
        lora_alpha=int(args.lora_alpha) if args.lora_alpha == int(args.lora_alpha) else args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules=list(args.lora_targets) or linear_layers(model),
        task_type="CAUSAL_LM",
    )
    named = _EXPERT_PARTS & {target.rsplit(".", 1)[-1] for target in args.lora_targets}
    if named and _fused_experts(model):
        raise ModelRefused(
            f"lora_targets names {', '.join(sorted(named))}, parts of this model's experts, which are fused",
            remedy="leave lora_targets empty: every linear layer beside the experts gets an adapter",
        )
    wrapped = get_peft_model(model, config)
    config.base_model_name_or_path = args.model  # peft sets it to the model's own name
    for module in model.modules():
        if mixed and hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False
    config.inference_mode = True  # saved for serving
    return wrapped


def vocabulary_difference(ours: Any, theirs: Any) -> str | None:
    """Describe how two tokenizers' ids differ; None if each token has the same id in both."""
    our_ids, their_ids = ours.get_vocab(), theirs.get_vocab()
    differ = sorted(token for token in our_ids.keys() | their_ids.keys() if our_ids.get(token) != their_ids.get(token))
    if not differ:
        return None
    token = differ[0]
    here, there = (f"is {vocabulary.get(token, 'absent')}" for vocabulary in (our_ids, their_ids))
    return f"{len(differ)} tokens differ; {token!r} {here} for the policy and {there} for the teacher"


def adapter_layers(model: Any) -> list[Any]:
    """Return the layers that have a part of an adapter."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer)]


@contextmanager
def switched_off(layers: Sequence[Any]) -> Iterator[None]:
    """Switch the adapter off temporarily; peft's own switch walks all parameters, which a GPU would wait for."""
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def linear_layers(model: Any) -> list[str]:
    """Return the last names of all linear layers but the head, sorted: the same adapter everywhere, every time.

    With fused experts, leave out layers named like an expert's parts: peft confuses the two.
    """
    head = model.get_output_embeddings()
    out = {"out_proj"} if model.config.model_type in _READS_WEIGHTS else set()
    names = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    return sorted(names - out - (_EXPERT_PARTS if _fused_experts(model) else set()))


def _fused_experts(model: Any) -> bool:
    return any(name.endswith("experts.gate_up_proj") and p.dim() == 3 for name, p in model.named_parameters())


def _to_peft(name: str) -> str:
    return "base_model.model." + name.replace(".default.", ".")


def _from_peft(name: str) -> str:
    stem, last = name.removeprefix("base_model.model.").rsplit(".", 1)
    return f"{stem}.default.{last}"
