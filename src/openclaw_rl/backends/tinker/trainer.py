"""The trainer at the service: LoRA there, losses and their gradient by log-prob here, a version's addresses on disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from openclaw_rl import files
from openclaw_rl.backends.hf.adapters import read_manifest, write_manifest
from openclaw_rl.backends.hf.batches import (
    HISTORY,
    LEAST,
    StepSkipped,
    TeacherPrompts,
    batch_alarm,
    batch_weight,
    choose_loss,
    distils_alone,
    finite,
    lag,
    norm_alarm,
    render_teachers,
)
from openclaw_rl.backends.hf.prompts import ChatFiles, read_chat
from openclaw_rl.backends.hf.trainer_settings import ADAM_EPS, DISTILLATION_BETA1
from openclaw_rl.backends.tinker import lookups
from openclaw_rl.backends.tinker.lookups import Lookup, ServiceWeights, look_up, loss_inputs
from openclaw_rl.backends.tinker.passes import TrainingPasses, logprobs_of
from openclaw_rl.backends.tinker.remote import (
    RemoteWeights,
    SavedCheckpoints,
    download_adapter,
    read_remote,
    write_remote,
)
from openclaw_rl.backends.tinker.session import TinkerSession
from openclaw_rl.backends.tinker.settings import TinkerTrainerSettings
from openclaw_rl.backends.tinker.troubles import SessionLost
from openclaw_rl.errors import BackendError, OpenClawError, RequestError
from openclaw_rl.losses import health
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Sample, Version

log = logging.getLogger(__name__)

_ANY_TOKEN: Final = 2**31
"""a bound above any vocabulary: the service checks its own, and refuses ids beyond it"""
_DELETED_AT_ONCE: Final = 16
_DELETING_SECONDS: Final = 20.0
"""seconds for deleting unneeded checkpoints after a step; the remainder waits for the next step"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerStep:
    """The request for one step."""

    samples: tuple[Sample, ...]
    number: int
    parent: Version
    target: Path


class TinkerTrainer:
    """LoRA at the service, as a `Trainer`. A step needs only its parent's directory with the weights' address.

    A failed step leaves no version, and the next step starts again from its parent's weights.
    """

    def __init__(self, settings: TinkerTrainerSettings) -> None:
        self.settings = settings if settings.kl == "k3" else replace(settings, kl="k3")
        self.session = TinkerSession(settings.access())
        self._says_kl = settings.kl != "k3" and settings.kl_coef > 0
        self._loss, self._weigh, self._max_hints = choose_loss(self.settings, settings.loss, settings.loss_config)
        self._passes = TrainingPasses(self.session)
        self._saved = SavedCheckpoints(settings.run_dir)
        self._chat: ChatFiles | None = None
        self._student: Any = None
        self._base: Any = None
        self._at: str | None = None
        self._lock = asyncio.Lock()

    @property
    def runner(self) -> str | None:
        """Return a description of the backend; None before it is started."""
        kl = "; the KL penalty to the base model is estimated from sampled tokens (k3)" if self._says_kl else ""
        return f"tinker at {self.session.url}{kl}" if self._chat is not None else None

    async def start(self) -> None:
        """Read the tokenizer and open a session; raise ModelRefused or BackendDown with the remedy."""
        async with self._lock:
            await self._ensure()

    async def _ensure(self) -> ChatFiles:
        if self._chat is None:
            settings = self.settings
            await self.session.surviving(self.session.service)
            self._chat = await asyncio.to_thread(
                read_chat, settings.tokenizer, cache_dir=settings.cache_dir, chat_template=settings.chat_template
            )
            log.info("trainer ready: %s", self.runner)
        return self._chat

    async def stop(self) -> None:
        """End the session. Safe to call twice."""
        self._forget()
        await self.session.close()

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        """Run one step from ``parent`` into ``target``; see `ports.Trainer`."""
        step = TinkerStep(samples=tuple(samples), number=number, parent=parent, target=Path(target))
        async with self._lock:
            chat = await self._ensure()
            earlier = await asyncio.to_thread(self._published, step)
            return earlier if earlier is not None else await self.session.surviving(lambda: self._step(step, chat))

    # --- one step

    async def _step(self, step: TinkerStep, chat: ChatFiles) -> StepResult:
        began, before = time.monotonic(), self.session.spending.tokens
        self.session.spending.refuse_beyond()
        metrics: dict[str, float] = {"samples": float(len(step.samples)), **lag(step.samples, step.parent.number)}
        prompts = await asyncio.to_thread(self._render, step, chat)
        try:
            remote = await self._train(step, prompts, metrics)
        except StepSkipped as skip:
            self._forget()
            metrics |= {**skip.metrics, **self._spent(before)}
            seconds = time.monotonic() - began
            return StepResult(
                adapter=None, metrics=finite(metrics), seconds=seconds, skipped=skip.reason, dropped=prompts.dropped
            )
        except RequestError as error:  # the service refuses the batch, which is no caller's request
            student = self._student
            self._forget()
            if student is not None:
                await self._passes.require(student)
            raise BackendError(error.what) from error
        except BaseException:
            self._forget()
            raise
        metrics |= self._spent(before) | {"seconds": time.monotonic() - began}
        await self._publish(step, remote, finite(metrics), prompts.dropped)
        await self._delete_unneeded()
        return StepResult(
            adapter=str(step.target), metrics=finite(metrics), seconds=metrics["seconds"], dropped=prompts.dropped
        )

    def _render(self, step: TinkerStep, chat: ChatFiles) -> TeacherPrompts:
        limit = self.settings.max_hints if self._max_hints is None else self._max_hints
        return render_teachers(chat.template, step.samples, most=limit, room=chat.context, vocabulary=_ANY_TOKEN)

    async def _train(self, step: TinkerStep, prompts: TeacherPrompts, metrics: dict[str, float]) -> RemoteWeights:
        """Compute the gradient, apply the update and save the weights; add measurements to ``metrics``."""
        weight = batch_weight(self._weigh, step.samples, prompts.views)
        samples, views = prompts.kept()
        if weight == 0 or not samples:
            nothing = "no teacher's prompt could be rendered" if prompts.missing else "there is no hint"
            raise StepSkipped(f"no signal: every advantage is zero and {nothing}")
        parent = await self._load(step.parent)
        student = ServiceWeights(client=self._student, sampler=parent.sampler if parent else None)
        lookup = await look_up(
            self.session,
            self._passes,
            self.settings,
            samples,
            views,
            version=step.parent.number,
            student=student,
            base=await self._base_weights(),
        )
        signal = batch_weight(self._weigh, step.samples, prompts.views, by_urgency=True)
        past = parent.norms if parent else ()
        norms = await self._stepped(step, lookup, metrics, weight=weight, signal=signal, norms=past)
        metrics |= {"teachers_missing": float(prompts.missing), "signal": signal}
        return await self._save(step, norms)

    async def _stepped(
        self,
        step: TinkerStep,
        found: Lookup,
        metrics: dict[str, float],
        *,
        weight: float,
        signal: float,
        norms: tuple[float, ...],
    ) -> tuple[float, ...]:
        """Take the step, in one pass if the service's own loss equals ours; return the gradient norms after it."""
        s, distillation = self.settings, distils_alone(step.samples)
        metrics["lr"] = s.distillation_lr * signal if distillation else s.lr * signal if s.lr_by_signal else s.lr
        adam = self._adam(metrics["lr"], DISTILLATION_BETA1 if distillation else s.adam_beta1)
        same = lookups.fits(s, found.batch)
        if same:
            norm, same = await self._in_one_pass(found, adam, metrics)
        if not same:
            if self._at is None:  # the one pass had a different loss, and its effect is discarded
                await self._load(step.parent)
            norm = await self._in_two_passes(found, adam, metrics)
        if norm is None:
            return norms
        metrics["grad_norm"], weighed = norm, norm / max(weight, LEAST)
        if why := norm_alarm(weighed, [] if distillation else norms, s.norm_alarm):
            raise StepSkipped(why, {"grad_norm": norm})
        return norms if distillation else (*norms, weighed)[-HISTORY:]

    async def _in_two_passes(self, found: Lookup, adam: Any, metrics: dict[str, float]) -> float | None:
        """Run both passes there, the loss and its gradient here; return the gradient norm."""
        values = await self._passes.forward(self._student, found.rows)
        gradients = self._gradients(found, values, metrics)
        backward = self._passes.backward(self._student, found.rows, gradients)
        return (await self._both(backward, adam))[1]

    async def _in_one_pass(self, found: Lookup, adam: Any, metrics: dict[str, float]) -> tuple[float | None, bool]:
        """Use the service's own loss; return the norm, and False if the loss differs and the step was discarded."""
        passed, norm = await self._both(lookups.surrogate_pass(self.session, self._student, self.settings, found), adam)
        outputs = [logprobs_of(values_) for values_ in passed.loss_fn_outputs]
        values = [values_[-len(row.ids) :, None] for values_, row in zip(outputs, found.rows, strict=True)]
        gradients = self._gradients(found, values, metrics)
        same = lookups.same_gradient(self.settings, found.batch, values, gradients)
        if not same:
            log.info("cloud.two_passes the service's own loss is another for this batch")
            self._forget()
        return norm, same

    async def _both(self, backward: Any, adam: Any) -> tuple[Any, float | None]:
        """Send the optimizer step before awaiting the backward pass; return the pass's result and the norm."""
        stepped = self._student.optim_step(adam)
        passed = await self.session.wait(backward, "a backward pass")
        return passed, gradient_norm((await self.session.wait(stepped, "an optimizer step")).metrics)

    def _adam(self, lr: float, beta1: float) -> Any:
        s = self.settings
        return self.session.sdk.types.AdamParams(
            learning_rate=lr,
            beta1=beta1,
            beta2=s.adam_beta2,
            eps=ADAM_EPS,
            weight_decay=s.weight_decay,
            grad_clip_norm=s.grad_clip,
        )

    def _gradients(self, found: Lookup, values: Sequence[Tensor], metrics: dict[str, float]) -> list[Tensor]:
        """Return d loss by each of the student's log-probs; raise StepSkipped on an alarm."""
        s = self.settings
        leaves = [tensor.clone().requires_grad_() for tensor in values]
        inputs = loss_inputs(found, leaves)
        measured = health(inputs, s.max_mismatch)
        if why := batch_alarm(measured, gap=s.gap_alarm, ess=s.ess_alarm):
            raise StepSkipped(why, measured)
        total, figures = self._loss(inputs)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        metrics |= {**figures, **measured}
        return [
            torch.zeros_like(leaf) if tensor is None else tensor for leaf, tensor in zip(leaves, gradients, strict=True)
        ]

    def _spent(self, before: Mapping[str, int]) -> dict[str, float]:
        """Return this step's tokens and their estimated cost."""
        spending = self.session.spending
        used = {kind: max(0, count - before.get(kind, 0)) for kind, count in spending.tokens.items()}
        return {f"cloud_{kind}": float(count) for kind, count in used.items()} | {"cloud_cost": spending.cost(used)}

    # --- weights at the service

    async def _load(self, parent: Version) -> RemoteWeights | None:
        """Load ``parent``'s weights into the student; return None if the parent is the base model."""
        remote = None if parent.adapter is None else await asyncio.to_thread(read_remote, Path(parent.adapter))
        where = parent.adapter or ""
        if self._student is None or self._at != where:
            self._student = await self._opened(remote)
            self._at = where
        return remote

    async def _opened(self, remote: RemoteWeights | None) -> Any:
        if remote is None:
            return await self._begun()
        service = await self.session.service()
        resume = service.create_training_client_from_state_with_optimizer
        try:
            return await self.session.blocking(lambda: resume(remote.state), "loading a checkpoint")
        except RequestError as refused:  # a server may not record an adapter's layers, and assumes all of them
            client = await self._begun()
            if not hasattr(client, "load_state_with_optimizer"):
                raise
            log.info("cloud.load %s; it is loaded into a new adapter", refused.what)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                loading = client.load_state_with_optimizer(remote.state)
            await self.session.wait(loading, "loading a checkpoint")
            return client

    async def _begun(self) -> Any:
        """Create an untrained adapter."""
        service, s = await self.session.service(), self.settings
        create = partial(
            service.create_lora_training_client,
            base_model=s.model,
            rank=s.lora_rank,
            seed=s.seed,
            train_mlp=True,
            train_attn=True,
            train_unembed=False,
        )
        return await self.session.blocking(create, "beginning an adapter")

    async def _base_weights(self) -> ServiceWeights:
        """Return the base model: an untrained adapter changes nothing."""
        if self._base is None:
            self._base = await self._begun()
        return ServiceWeights(client=self._base, sampler=None)

    async def _save(self, step: TinkerStep, norms: tuple[float, ...]) -> RemoteWeights:
        """Save the weights twice: for further training and for sampling."""
        name = f"v{step.target.name}-{uuid.uuid4().hex[:8]}"
        state, sampler = self._student.save_state(name), self._student.save_weights_for_sampler(name)
        saved = await self.session.wait(state, "saving a checkpoint")
        await asyncio.to_thread(self._saved.add, saved.path, step.target)
        served = await self.session.wait(sampler, "saving weights to sample from")
        await asyncio.to_thread(self._saved.add, served.path, step.target)
        return RemoteWeights(state=saved.path, sampler=served.path, norms=norms)

    async def _delete_unneeded(self) -> None:
        """Delete checkpoints at the service that no version on disk names; retry failures after the next step."""
        try:
            async with asyncio.timeout(_DELETING_SECONDS):
                for address in (await asyncio.to_thread(self._saved.unneeded))[:_DELETED_AT_ONCE]:
                    await self._delete(address)
        except (OpenClawError, TimeoutError) as error:
            log.info("cloud.delete %s; it is tried again after the next step", str(error) or "no answer")

    async def _delete(self, address: str) -> None:
        delete = (await self.session.rest()).delete_checkpoint_from_tinker_path
        with contextlib.suppress(SessionLost):  # it is gone already
            await self.session.blocking(lambda: delete(address).result(), "deleting a checkpoint")
        await asyncio.to_thread(self._saved.drop, address)
        log.info("cloud.deleted %s", address)

    def _forget(self) -> None:
        """Discard the clients, whose state is unknown: the next step starts from checkpoints."""
        self._student = self._base = self._at = None

    # --- versions on disk

    async def _publish(
        self, step: TinkerStep, remote: RemoteWeights, metrics: Mapping[str, float], dropped: Mapping[str, str]
    ) -> None:
        """Write the new version atomically."""
        adapter = await download_adapter(self.session, self._student, remote) if self.settings.cloud_download else {}
        await asyncio.to_thread(self._write, step, remote, adapter, {"metrics": metrics, "dropped": dropped})
        self._at = str(step.target)

    def _write(
        self, step: TinkerStep, remote: RemoteWeights, adapter: Mapping[str, bytes], said: Mapping[str, Any]
    ) -> None:
        with files.directory(step.target) as directory:
            write_remote(directory, remote)
            for name, content in adapter.items():
                (directory / name).write_bytes(content)
            write_manifest(directory, {**self._identity(step), **said})

    def _published(self, step: TinkerStep) -> StepResult | None:
        """Return this request's earlier result, if its step was published but the caller ended before receiving it."""
        manifest = read_manifest(step.target) if step.target.is_dir() else None
        if manifest is None or any(manifest.get(name) != value for name, value in self._identity(step).items()):
            return None
        return StepResult(
            adapter=str(step.target), metrics=manifest["metrics"], seconds=0.0, dropped=manifest.get("dropped", {})
        )

    def _identity(self, step: TinkerStep) -> dict[str, Any]:
        return {
            "kind": "tinker",
            "base": step.parent.base,
            "parent": step.parent.number,
            "parent_adapter": step.parent.adapter,
            "step": step.number,
            "turns": [sample.turn for sample in step.samples],
            "config": self.settings.record(),
        }


def gradient_norm(metrics: Mapping[str, float] | None) -> float | None:
    """Return the gradient norm before clipping, if the service reports it."""
    for name, value in (metrics or {}).items():
        if "grad" in name and ("norm" in name or "l2" in name):
            return float(value)
    return None
