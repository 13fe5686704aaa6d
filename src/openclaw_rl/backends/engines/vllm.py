"""The vLLM dialect: `/v1/completions` with token ids both ways, and adapters under their own names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from openclaw_rl.backends.engines.dialect import (
    ChatCall,
    EngineFacts,
    EngineRequest,
    GenerateCall,
    LaunchPlan,
    chat_fields,
    top_count,
)
from openclaw_rl.backends.engines.http import EngineAnswer
from openclaw_rl.backends.hf.detokenizer import Ending, TokenChunk, TopLogprobs, in_order, tempered
from openclaw_rl.types import Sampling, Tokens

_Table: TypeAlias = Mapping[str, float] | None
"""log-probs at one position by token name, `token_id:N`"""
_ENDINGS: Mapping[str | None, Ending] = {"stop": "stop", "length": "length"}
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
LORAS = 4
"""adapters in one batch: the live version, a candidate, a draft, one that a client names"""


class VllmDialect:
    """The `Dialect` for vLLM."""

    name = "vllm"
    package = "vllm"
    oldest = (0, 12)
    generate_path = "/v1/completions"
    chat_path = "/v1/chat/completions"
    score_path = "/v1/completions"
    health_path = "/health"
    fact_paths: Sequence[str] = ("/v1/models", "/version")
    sleep_request: EngineRequest = ("/sleep?level=1&mode=wait", {})
    wake_request: EngineRequest = ("/wake_up", {})
    control_path: str | None = "/is_sleeping"
    sleep_remedy = "start vLLM with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"
    reload_remedy = "start vLLM with VLLM_SERVER_DEV_MODE=1; are these weights of the model that it serves?"

    def command(self, plan: LaunchPlan) -> list[str]:
        variables = ["VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_NO_USAGE_STATS=1"]
        if plan.sleeps or plan.lora_rank is None:  # these routes exist only in development mode
            variables.append("VLLM_SERVER_DEV_MODE=1")
        if plan.gpus:
            variables.append(f"CUDA_VISIBLE_DEVICES={','.join(map(str, plan.gpus))}")
        if plan.cache_gib is not None:
            variables.append(f"VLLM_CPU_KVCACHE_SPACE={plan.cache_gib}")
        return ["env", *variables, plan.python, "-m", "vllm.entrypoints.openai.api_server", *_flags(plan), *plan.flags]

    def generate_body(self, call: GenerateCall, facts: EngineFacts) -> dict[str, Any]:
        body = {
            **_sampling(call.sampling),
            "model": call.adapter or facts.model,
            "prompt": call.prompt,
            "max_tokens": call.limit,
            "stop_token_ids": call.ends,
            "logprobs": top_count(call.sampling),
            "return_tokens_as_token_ids": True,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "stream": True,
        }
        if call.scope:
            body["cache_salt"] = call.scope
        return body | _guided(call)

    def chat_body(self, call: ChatCall, facts: EngineFacts) -> dict[str, Any]:
        top = top_count(call.sampling)
        body = {
            **_sampling(call.sampling),
            "model": call.adapter or facts.model,
            **chat_fields(call.prompt, tool_choice="none"),
            "logprobs": True,
            "top_logprobs": top,
            "return_tokens_as_token_ids": True,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "stream": True,
        }
        if call.limit is not None:
            body["max_completion_tokens"] = call.limit
        return body

    def chunk(self, event: Mapping[str, Any], *, taken: int, temperature: float, top: int) -> TokenChunk:
        choices = event.get("choices")
        if not choices:
            return TokenChunk()
        choice = choices[0]
        tokens = tuple(choice.get("token_ids") or ())
        logprobs, tables = _logprobs(choice.get("logprobs"), len(tokens))
        return TokenChunk(
            tokens=tokens,
            logprobs=logprobs,
            tempered=logprobs if temperature in (0.0, 1.0) else _tempered(logprobs, tables, temperature),
            tops=tuple(map(_top, tables)) if top else ((),) * len(tokens),
            prompt=_prompt(event, choice),
            ending=_ENDINGS.get(choice.get("finish_reason")),
        )

    def score_body(self, prompt: Tokens, reply: Tokens, adapter: str | None, top: int, facts: EngineFacts) -> Any:
        return {
            "model": adapter or facts.model,
            "prompt": (*prompt, *reply),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": top,
        }

    def scores(self, answer: Any, *, reply: Tokens) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
        rows = answer["choices"][0]["prompt_logprobs"][-len(reply) :]
        tables = [{int(token): min(entry["logprob"], 0.0) for token, entry in row.items()} for row in rows]
        values = tuple(row[token] for row, token in zip(tables, reply, strict=True))
        return values, tuple(map(in_order, tables))

    def load_request(self, name: str, path: str) -> EngineRequest:
        return "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}

    def unload_request(self, name: str) -> EngineRequest:
        return "/v1/unload_lora_adapter", {"lora_name": name}

    def loaded(self, answer: EngineAnswer) -> str | None:
        if answer.status == 200:
            return None
        if answer.status == 404 and "not found" in answer.words.lower() and "lora" not in answer.words.lower():
            return "it does not take adapters while it runs: VLLM_ALLOW_RUNTIME_LORA_UPDATING is not set"
        return answer.words

    def reload_requests(self, path: str) -> Sequence[EngineRequest]:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        return ("/collective_rpc", reload), ("/reset_prefix_cache", {})

    def reloaded(self, answer: EngineAnswer) -> str | None:
        content = answer.json()
        failed = isinstance(content, dict) and content.get("success") is False
        return "it did not reset its prefix cache" if failed else None if answer.status == 200 else answer.words

    def forgot(self, answer: EngineAnswer) -> bool:
        return answer.status == 404

    def facts(self, answers: Mapping[str, Any]) -> EngineFacts:
        models = answers["/v1/models"]["data"]
        base = next(model for model in models if not model.get("parent"))
        return EngineFacts(
            model=base["id"],
            context=base.get("max_model_len"),
            version=(answers["/version"] or {}).get("version", "unknown"),
            adapters=tuple(model["id"] for model in models if model.get("parent")),
        )


def _flags(plan: LaunchPlan) -> list[str]:
    flags = ["--model", str(plan.folder), "--served-model-name", "base", "--host", "127.0.0.1"]
    flags += ["--port", str(plan.port), *_lora_flags(plan), *(["--enable-sleep-mode"] if plan.sleeps else [])]
    flags += ["--dtype", plan.dtype, "--max-num-seqs", str(plan.max_batch), "--generation-config", "vllm"]
    flags += ["--max-logprobs", "64"]
    if plan.context is not None:
        flags += ["--max-model-len", str(plan.context)]
    if len(plan.gpus) > 1:
        flags += ["--tensor-parallel-size", str(len(plan.gpus))]
    if plan.cache_gib is not None:
        flags += ["--enforce-eager"]
    if plan.memory is not None:
        flags += ["--gpu-memory-utilization", f"{plan.memory:g}"]
    return flags


def _lora_flags(plan: LaunchPlan) -> list[str]:
    if plan.lora_rank is None:
        return []
    rank = next((rank for rank in _RANKS if rank >= (plan.lora_rank or 0)), _RANKS[-1])
    flags = ["--enable-lora", "--max-loras", str(LORAS), "--max-lora-rank", str(rank)]
    if plan.cache_gib is not None and plan.lora_targets:
        # with room for an adapter on the head, the CPU build crashes when it scores beside other requests
        flags += ["--lora-target-modules", *plan.lora_targets]
    return flags


def _sampling(sampling: Sampling) -> dict[str, Any]:
    body: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }
    return body if sampling.seed is None else body | {"seed": sampling.seed}


def _guided(call: GenerateCall) -> dict[str, Any]:
    if call.guidance is None:
        return {}
    kind, schema = call.guidance
    return {"structured_outputs": {kind: json.dumps(schema) if kind == "structural_tag" else dict(schema)}}


def _prompt(event: Mapping[str, Any], choice: Mapping[str, Any]) -> Tokens | None:
    ids = choice.get("prompt_token_ids") or event.get("prompt_token_ids")
    return tuple(ids) if ids else None


def _logprobs(found: Any, count: int) -> tuple[tuple[float, ...], Sequence[_Table]]:
    """Return the log-probs `[count]` and those of the likeliest tokens by name, from a completion or a chat."""
    if not count:
        return (), []
    if not found:
        raise ValueError("the engine gave tokens without their log-probs")
    if "content" in found:
        rows = found["content"]
        values = [row["logprob"] for row in rows]
        tables = [{entry["token"]: entry["logprob"] for entry in (row, *row["top_logprobs"])} for row in rows]
    else:
        values, tables = found["token_logprobs"], found["top_logprobs"]
    if len(values) != count:
        raise ValueError(f"the engine gave {len(values)} log-probs for {count} tokens")
    return tuple([min(value, 0.0) for value in values]), tables


def _tempered(values: Sequence[float], tables: Sequence[_Table], temperature: float) -> tuple[float, ...]:
    rows = zip(values, tables, strict=True)
    return tuple([tempered(value, list((table or {}).values()), temperature) for value, table in rows])


def _top(table: _Table) -> TopLogprobs:
    return in_order({int(name.removeprefix("token_id:")): min(v, 0.0) for name, v in (table or {}).items()})
