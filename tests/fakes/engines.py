"""vLLM and SGLang as contract fakes: their documented routes on a free port, over a model that echoes.

`fake_engine("vllm")` runs one for the length of a block; `write_engine_model` makes the folder of the model that it
serves, one token per byte. The model says what it was told and the rules that its adapter learned (`FakeTrainer`), so a
reader sees which adapter answered. An engine can die in the middle of a stream and come back without its adapters.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fakes.engine_model import CONTEXT, EngineKind, FakeEngine, write_engine_model
from openclaw_rl.backends.fake import ADAPTER, logprob
from openclaw_rl.testing.servers import listening

__all__ = ["EngineKind", "FakeEngine", "fake_engine", "write_engine_model"]

_Token = tuple[int, int, str | None]


@contextmanager
def fake_engine(kind: EngineKind, folder: Path, *, port: int = 0) -> Iterator[FakeEngine]:
    """A fake engine on a port, a free one unless it is named, for the length of a block.

    >>> import tempfile, urllib.request
    >>> with tempfile.TemporaryDirectory() as place, fake_engine("vllm", write_engine_model(Path(place))) as engine:
    ...     urllib.request.urlopen(engine.url + "/health").status
    200
    """
    engine = FakeEngine(kind, folder)
    routes = (_Vllm if kind == "vllm" else _Sglang)(engine).routes()
    with listening(Starlette(routes=routes), port=port, abrupt=True) as engine.url:
        yield engine


class _Routes:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self.engine.alive else 503)

    async def models(self, _: Request) -> Response:
        cards = [{"id": "base", "object": "model", "parent": None, "max_model_len": CONTEXT}]
        cards += [{"id": name, "object": "model", "parent": "base"} for name in self.engine.adapters]
        return JSONResponse({"object": "list", "data": cards})

    async def tokenize(self, request: Request) -> Response:
        ids = self.engine.tokenizer.encode((await request.json())["prompt"], add_special_tokens=False).ids
        return JSONResponse({"count": len(ids), "max_model_len": CONTEXT, "tokens": ids})

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        said = "".join(f"<|im_start|>{m['role']}\n{_words(m['content'])}<|im_end|>\n" for m in messages)
        text = f"{said}<|im_start|>assistant\n"
        return list(self.engine.tokenizer.encode(text, add_special_tokens=False).ids)

    async def reloaded(self, path: str, answer: Response) -> Response:
        """The answer to a reload: weights that are not there, or broken, are refused."""
        if not await asyncio.to_thread((Path(path) / "model.safetensors").exists):
            learned = await asyncio.to_thread((Path(path) / ADAPTER).exists)
            if not learned:
                return _error(500, f"Cannot find any model weights with `{path}`", "InternalServerError")
        await asyncio.sleep(self.engine.reload_seconds)
        self.engine.reload(path)
        return answer

    async def sleep(self, _: Request) -> Response:
        if not self.engine.can_sleep:
            return _error(404, "Not Found", "NotFoundError")
        self.engine.sleep()
        return JSONResponse({"status": "sleeping"})

    async def wake(self, _: Request) -> Response:
        self.engine.asleep = False
        return JSONResponse({"status": "awake"})

    async def tokens(
        self, ids: Sequence[int], adapter: str | None, limit: int, schema: str | None = None
    ) -> AsyncIterator[_Token]:
        """Token, position in the reply and how it ends if it does; breaks off where the engine dies."""
        engine = self.engine
        reply, done = engine.reply(ids, adapter, schema)
        if engine.asleep:
            engine.faults.append("a request came while it slept")
        engine.running += 1
        try:
            for at, token in enumerate(reply[:limit]):
                if wait := engine.until_due(at):
                    await asyncio.sleep(wait)
                if engine.die_after is not None and done + at >= engine.die_after:
                    engine.die_after = None
                    engine.die()
                if not engine.alive:
                    raise ConnectionAbortedError("the fake engine died")
                yield token, done + at, "stop" if token == 1 else "length" if at + 1 == limit else None
        except (asyncio.CancelledError, GeneratorExit):
            engine.cancelled += 1
            raise
        finally:
            engine.running -= 1


class _Vllm(_Routes):
    """The routes of vLLM's OpenAI-compatible server."""

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/version", lambda _: JSONResponse({"version": self.engine.version})),
            Route("/is_sleeping", self.is_sleeping),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/collective_rpc", self.rpc, methods=["POST"]),
            Route("/reset_prefix_cache", lambda _: JSONResponse({"success": True}), methods=["POST"]),
            Route("/sleep", self.sleep, methods=["POST"]),
            Route("/wake_up", self.wake, methods=["POST"]),
        ]

    async def is_sleeping(self, _: Request) -> Response:
        """As the other routes of control it is there only where the engine was started so."""
        if not self.engine.can_sleep:
            return _error(404, "Not Found", "NotFoundError")
        return JSONResponse({"is_sleeping": self.engine.asleep})

    async def rpc(self, request: Request) -> Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        return await self.reloaded(body["kwargs"]["weights_path"], JSONResponse({"results": [None]}))

    async def load(self, request: Request) -> Response:
        body, engine = await request.json(), self.engine
        name, path = body["lora_name"], body["lora_path"]
        there = await asyncio.to_thread(Path(path).is_dir)
        rank = await asyncio.to_thread(_rank, Path(path))
        if rank > engine.max_rank:
            said = f"LoRA rank {rank} is greater than max_lora_rank {engine.max_rank}."
            return _error(400, said, "BadRequestError")
        if name in engine.adapters:
            return _error(400, f"The lora adapter '{name}' has already been loaded.", "InvalidUserInput")
        if not there or rank:  # a folder of a doctor holds settings and no weights
            return _error(404, f"Loading lora {name} failed: No adapter found for {path}", "NotFoundError")
        engine.adapters[name] = path
        engine.loads.append(name)
        return Response(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if self.engine.adapters.pop(name, None) is None:
            return _error(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        self.engine.unloads.append(name)
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")

    async def completions(self, request: Request) -> Response:
        body, engine = await request.json(), self.engine
        if not engine.alive or engine.failing():
            return _error(500 if engine.alive else 503, "EngineCore encountered an issue.", "InternalServerError")
        engine.requests.append(body)
        if body["model"] != "base" and body["model"] not in engine.adapters:
            return _error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        if len(body["prompt"]) + body["max_tokens"] > CONTEXT:
            return _error(400, f"This model's maximum context length is {CONTEXT} tokens.", "BadRequestError")
        if body.get("prompt_logprobs") is not None:
            return JSONResponse({"choices": [{"index": 0, "text": "", "prompt_logprobs": self.scores(body)}]})
        return StreamingResponse(self.events(body), media_type="text/event-stream")

    async def chat(self, request: Request) -> Response:
        """Chat as clients know it, for those who ask the engine itself."""
        body = await request.json()
        self.engine.requests.append(body)
        return StreamingResponse(
            self.chat_events(self.chat_ids(body["messages"]), body), media_type="text/event-stream"
        )

    async def chat_events(self, ids: Sequence[int], body: dict[str, Any]) -> AsyncIterator[bytes]:
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or CONTEXT - len(ids)
        adapter = None if body["model"] == "base" else body["model"]
        async for token, position, finish in self.tokens(ids, adapter, limit):
            delta = {"content": self.engine.tokenizer.decode([token], skip_special_tokens=True)}
            choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
            chunk: dict[str, Any] = {"id": "chat-1", "object": "chat.completion.chunk", "choices": [choice]}
            if body.get("return_token_ids"):
                row = {"token": f"token_id:{token}", "logprob": logprob(token, position), "top_logprobs": []}
                choice |= {"token_ids": [token], "logprobs": {"content": [row]}}
                chunk |= {"prompt_token_ids": list(ids)} if position == 0 else {}
            yield _event(chunk)
        yield b"data: [DONE]\n\n"

    def scores(self, body: dict[str, Any]) -> list[dict[str, Any] | None]:
        ids, engine = body["prompt"], self.engine
        begin = _begin(engine, ids)
        rows: list[dict[str, Any] | None] = [None]
        for at, token in enumerate(ids[1:], 1):
            top = engine.top(token, max(0, at - begin), body["prompt_logprobs"] + 1)
            rows.append({str(t): {"logprob": value, "rank": 1, "decoded_token": ""} for t, value in top})
        return rows

    async def events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        adapter = None if body["model"] == "base" else body["model"]
        wanted = body.get("structured_outputs", {}).get("json")
        schema = None if wanted is None else json.dumps(wanted)
        async for token, position, finish in self.tokens(body["prompt"], adapter, body["max_tokens"], schema):
            top = {f"token_id:{t}": value for t, value in self.engine.top(token, position, body["logprobs"] + 1)}
            logprobs = {
                "tokens": [f"token_id:{token}"],
                "token_logprobs": [logprob(token, position)],
                "top_logprobs": [top],
                "text_offset": [0],
            }
            choice = {"index": 0, "text": "", "logprobs": logprobs, "finish_reason": finish, "token_ids": [token]}
            yield _event({"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice]})
        yield b"data: [DONE]\n\n"


class _Sglang(_Routes):
    """The routes of SGLang's server."""

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/get_server_info", self.server_info),
            Route("/get_model_info", lambda _: JSONResponse({"is_generation": True})),
            Route("/generate", self.generate, methods=["POST"]),
            Route("/load_lora_adapter", self.load, methods=["POST"]),
            Route("/unload_lora_adapter", self.unload, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/update_weights_from_disk", self.update, methods=["POST"]),
            Route("/release_memory_occupation", self.sleep, methods=["POST"]),
            Route("/resume_memory_occupation", self.wake, methods=["POST"]),
        ]

    async def server_info(self, _: Request) -> Response:
        engine = self.engine
        about = {"max_lora_rank": engine.max_rank, "enable_memory_saver": engine.can_sleep}
        return JSONResponse({"version": engine.version, **about})

    async def update(self, request: Request) -> Response:
        return await self.reloaded((await request.json())["model_path"], JSONResponse({"success": True}))

    async def chat(self, request: Request) -> Response:
        """A chat in one piece: token ids are not given in a stream."""
        body = await request.json()
        if body.get("stream") and body.get("return_token_ids"):
            return _error(400, "return_token_ids is not supported with streaming", "BadRequestError")
        self.engine.requests.append(body)
        ids = self.chat_ids(body["messages"])
        reply = [found async for found in self.tokens(ids, body.get("lora_path"), body["max_completion_tokens"])]
        about = {
            "finish_reason": {"type": reply[-1][2]},
            "output_token_logprobs": [[logprob(token, at), token, None] for token, at, _ in reply],
        }
        choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "meta_info": about}
        made = {"prompt_token_ids": ids, "response_token_ids": [token for token, _, _ in reply]}
        return JSONResponse({"id": "chat-1", "object": "chat.completion", "choices": [choice | made]})

    async def load(self, request: Request) -> Response:
        body, engine = await request.json(), self.engine
        name, path = body["lora_name"], body["lora_path"]
        there = await asyncio.to_thread(Path(path).is_dir)
        if name in engine.adapters or not there:
            said = f"Failed to load LoRA adapter '{name}' from {path}"
            return JSONResponse({"success": False, "error_message": said}, status_code=400)
        engine.adapters[name] = path
        engine.loads.append(name)
        return JSONResponse({"success": True, "loaded_adapters": engine.adapters})

    async def unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if self.engine.adapters.pop(name, None) is None:
            return JSONResponse({"success": False, "error_message": f"{name} is not loaded"}, status_code=400)
        self.engine.unloads.append(name)
        return JSONResponse({"success": True, "loaded_adapters": self.engine.adapters})

    async def generate(self, request: Request) -> Response:
        body, engine = await request.json(), self.engine
        if not engine.alive or engine.failing():
            return _error(500 if engine.alive else 503, "EngineCore encountered an issue.", "InternalServerError")
        engine.requests.append(body)
        adapter = body.get("lora_path")
        if adapter is not None and adapter not in engine.adapters:
            said = f"The following requested LoRA adapters are not loaded: {adapter}"
            error = {"error": {"message": said, "type": "invalid_request_error", "code": 400}}
            if body.get("stream"):  # refused inside of a stream, with status 200
                return Response(_event(error) + b"data: [DONE]\n\n", media_type="text/event-stream")
            return JSONResponse(error, status_code=400)
        if not body.get("stream"):
            return JSONResponse({"text": "", "output_ids": [], "meta_info": self.scores(body)})
        return StreamingResponse(self.events(body), media_type="text/event-stream")

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, engine = body["input_ids"], self.engine
        begin, first = _begin(engine, ids), body["logprob_start_len"]
        rows, tops = [], []
        for at, token in enumerate(ids[first:], first):
            top = engine.top(token, max(0, at - begin), body["top_logprobs_num"])
            rows.append([None if at == 0 else top[0][1], token, None])
            tops.append([[value, t, None] for t, value in top[: body["top_logprobs_num"]]])
        return {"input_token_logprobs": rows, "input_top_logprobs": tops}

    async def events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """Each event holds the whole reply so far."""
        sampling = body["sampling_params"]
        heat = sampling["temperature"] or 1.0
        ids: list[int] = []
        rows: list[list[Any]] = []
        tops: list[list[list[Any]]] = []
        schema, most = sampling.get("json_schema"), sampling["max_new_tokens"]
        found = self.tokens(body["input_ids"], body.get("lora_path"), most, schema)
        async for token, position, finish in found:
            ids.append(token)
            rows.append([logprob(token, position) / heat, token, None])
            top = self.engine.top(token, position, body["top_logprobs_num"])
            tops.append([[value / heat, t, None] for t, value in top[: body["top_logprobs_num"]]])
            about = {
                "finish_reason": {"type": finish} if finish else None,
                "completion_tokens": len(ids),
                "output_token_logprobs": rows,
                "output_top_logprobs": tops,
            }
            yield _event({"text": "", "output_ids": ids, "meta_info": about})
        yield b"data: [DONE]\n\n"


def _words(content: Any) -> str:
    """The text of a message; each image is said to be one."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "(image) ") for part in content)


def _rank(folder: Path) -> int:
    """The rank that the settings of an adapter name, 0 without settings."""
    settings = folder / "adapter_config.json"
    return int(json.loads(settings.read_text())["r"]) if settings.exists() else 0


def _begin(engine: FakeEngine, ids: Sequence[int]) -> int:
    """Where the last reply in a prompt begins."""
    head = engine.tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False).ids
    found = [at for at in range(len(ids)) if list(ids[at : at + len(head)]) == head]
    return found[-1] + len(head) if found else 1


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _error(status: int, words: str, kind: str) -> Response:
    return JSONResponse({"error": {"message": words, "type": kind, "code": status}}, status_code=status)
