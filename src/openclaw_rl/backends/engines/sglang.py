"""The SGLang dialect: `/generate` with token ids both ways, adapters through `/load_lora_adapter`.

Its log-probs are at the sampling temperature (unless SGLANG_RETURN_ORIGINAL_LOGPROB is set), so API clients also
receive these if a request has a temperature other than 1. Based on the routes in release 0.5.23.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openclaw_rl.backends.engines.dialect import (
    ChatCall,
    EngineFacts,
    EngineRequest,
    GenerateCall,
    LaunchPlan,
    chat_fields,
)
from openclaw_rl.backends.engines.http import EngineAnswer
from openclaw_rl.backends.hf.detokenizer import Ending, TokenChunk, TopLogprobs, in_order
from openclaw_rl.types import Sampling, Tokens

_ENDINGS: Mapping[str, Ending] = {"stop": "stop", "length": "length"}
_LORAS = 4


class SglangDialect:
    """The `Dialect` for SGLang."""

    name = "sglang"
    package = "sglang"
    oldest = (0, 5)
    control_path: str | None = None
    generate_path = "/generate"
    chat_path = "/v1/chat/completions"
    score_path = "/generate"
    health_path = "/health"
    fact_paths: Sequence[str] = ("/v1/models", "/get_server_info", "/get_model_info")
    sleep_request: EngineRequest = ("/release_memory_occupation", {})
    wake_request: EngineRequest = ("/resume_memory_occupation", {})
    sleep_remedy = "start SGLang with --enable-memory-saver and --enable-weights-cpu-backup"
    reload_remedy = "are these weights of the model that it serves?"

    def command(self, plan: LaunchPlan) -> list[str]:
        flags = ["--model-path", str(plan.folder), "--served-model-name", "base", "--host", "127.0.0.1"]
        flags += ["--port", str(plan.port), "--dtype", plan.dtype, "--max-running-requests", str(plan.max_batch)]
        if plan.lora_rank is not None:
            flags += ["--enable-lora", "--max-loras-per-batch", str(_LORAS), "--max-lora-rank", str(plan.lora_rank)]
            flags += ["--lora-target-modules", *(plan.lora_targets or ("all",))]
        if plan.sleeps:
            flags += ["--enable-memory-saver", "--enable-weights-cpu-backup"]
        if plan.context is not None:
            flags += ["--context-length", str(plan.context)]
        if len(plan.gpus) > 1:
            flags += ["--tp-size", str(len(plan.gpus))]
        if plan.memory is not None:
            flags += ["--mem-fraction-static", f"{plan.memory:g}"]
        if plan.cache_gib is not None:
            flags += ["--device", "cpu"]
        devices = [f"CUDA_VISIBLE_DEVICES={','.join(map(str, plan.gpus))}"] if plan.gpus else []
        return ["env", *devices, plan.python, "-m", "sglang.launch_server", *flags, *plan.flags]

    def generate_body(self, call: GenerateCall, facts: EngineFacts) -> dict[str, Any]:
        body: dict[str, Any] = {
            "input_ids": call.prompt,
            "sampling_params": _sampling_params(call),
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": call.sampling.top_logprobs,
            "stream": True,
        }
        if call.adapter is not None:
            body["lora_path"] = call.adapter
        if call.scope:
            body["cache_salt"] = call.scope
        return body

    def chat_body(self, call: ChatCall, facts: EngineFacts) -> dict[str, Any]:
        """Build a request without streaming: the engine returns a chat reply's ids only when the reply is complete."""
        body: dict[str, Any] = {
            **_sampling(call.sampling),
            "model": facts.model,
            **chat_fields(call.prompt, tool_choice="auto"),  # with "none" the template would not contain the tools
            "logprobs": True,
            "top_logprobs": call.sampling.top_logprobs,
            "return_token_ids": True,
            "return_meta_info": True,
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "separate_reasoning": False,
            "stream": False,
        }
        if call.limit is not None:
            body["max_completion_tokens"] = call.limit
        if call.sampling.seed is not None:
            body["seed"] = call.sampling.seed
        return body if call.adapter is None else body | {"lora_path": call.adapter}

    def chunk(self, event: Mapping[str, Any], *, taken: int, temperature: float, top: int) -> TokenChunk:
        """Parse an event: the whole reply so far or its new part, by configuration; both end with the new tokens."""
        if "choices" in event:
            return _whole(event["choices"][0])
        if "meta_info" not in event:
            return TokenChunk()
        about = event["meta_info"]
        new = about["completion_tokens"] - taken
        return _tokens(tuple(event["output_ids"][-new:]) if new > 0 else (), about)

    def score_body(self, prompt: Tokens, reply: Tokens, adapter: str | None, top: int, facts: EngineFacts) -> Any:
        body: dict[str, Any] = {
            "input_ids": (*prompt, *reply),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
            "top_logprobs_num": top,
        }
        return body if adapter is None else body | {"lora_path": adapter}

    def scores(self, answer: Any, *, reply: Tokens) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
        about = answer["meta_info"]
        rows = about["input_token_logprobs"][-len(reply) :]
        if [row[1] for row in rows] != list(reply):
            raise ValueError("the engine scored other tokens than those of the reply")
        tops = (about.get("input_top_logprobs") or [])[-len(reply) :]
        likeliest = tuple(
            in_order({row[1]: min(row[0], 0.0)} | dict(_top(top))) for row, top in zip(rows, tops, strict=False)
        )
        return tuple(min(row[0], 0.0) for row in rows), likeliest or ((),) * len(reply)

    def load_request(self, name: str, path: str) -> EngineRequest:
        return "/load_lora_adapter", {"lora_name": name, "lora_path": path}

    def unload_request(self, name: str) -> EngineRequest:
        return "/unload_lora_adapter", {"lora_name": name}

    def loaded(self, answer: EngineAnswer) -> str | None:
        return self.reloaded(answer)

    def reload_requests(self, path: str) -> Sequence[EngineRequest]:
        return (("/update_weights_from_disk", {"model_path": path, "flush_cache": True}),)

    def reloaded(self, answer: EngineAnswer) -> str | None:
        content = answer.json()
        succeeded = answer.status == 200 and isinstance(content, dict) and content.get("success", True)
        return None if succeeded else answer.words

    def forgot(self, answer: EngineAnswer) -> bool:
        words = answer.words.lower()
        return answer.status == 400 and "lora" in words and ("not loaded" in words or "not found" in words)

    def facts(self, answers: Mapping[str, Any]) -> EngineFacts:
        models, server = answers["/v1/models"]["data"], answers["/get_server_info"] or {}
        base = next((model for model in models if not model.get("parent")), models[0])
        return EngineFacts(
            model=base["id"],
            context=base.get("max_model_len"),
            version=server.get("version", "unknown"),
            adapters=tuple(model["id"] for model in models if model.get("parent")),
            lora_rank=server.get("max_lora_rank"),
            sleeps=server.get("enable_memory_saver"),
        )


def _whole(choice: Mapping[str, Any]) -> TokenChunk:
    """Parse a complete reply from the chat route, with the prompt's tokens from the engine."""
    chunk = _tokens(tuple(choice["response_token_ids"]), choice["meta_info"])
    return replace(chunk, prompt=tuple(choice["prompt_token_ids"]))


def _tokens(tokens: Tokens, about: Mapping[str, Any]) -> TokenChunk:
    """Return tokens with the last log-probs in ``about``, which may cover the whole reply."""
    new, finish = len(tokens), about.get("finish_reason")
    rows = (about.get("output_token_logprobs") or [])[-new:] if new else []
    if [row[1] for row in rows] != list(tokens):
        raise ValueError("the engine's log-probs are not those of its tokens")
    logprobs = tuple(min(row[0], 0.0) for row in rows)
    tops = (about.get("output_top_logprobs") or [])[-new:] if new else []
    return TokenChunk(
        tokens=tokens,
        logprobs=logprobs,
        tempered=logprobs,
        tops=tuple(_top(row) for row in tops) or ((),) * new,
        ending=_ENDINGS.get(finish["type"]) if finish else None,
    )


def _sampling(sampling: Sampling) -> dict[str, Any]:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }


def _sampling_params(call: GenerateCall) -> dict[str, Any]:
    body: dict[str, Any] = {
        **_sampling(call.sampling),
        "max_new_tokens": call.limit,
        "stop_token_ids": call.ends,
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if call.sampling.seed is not None:
        body["sampling_seed"] = call.sampling.seed
    if call.guidance is not None:
        kind, schema = call.guidance
        body["json_schema" if kind == "json" else kind] = json.dumps(schema)
    return body


def _top(row: Any) -> TopLogprobs:
    """Return a position's tokens by log-prob, from rows with log-prob, token and text; None is an empty position."""
    return in_order({entry[1]: min(entry[0], 0.0) for entry in row or ()})
