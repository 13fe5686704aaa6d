"""Models that rate words: a local policy by its scores, an endpoint by its log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import httpx2

from openclaw_rl.errors import BackendError, InvalidValue, JudgeUnavailable, RequestError
from openclaw_rl.judge.availability import TokenBudget
from openclaw_rl.judge.prompt import approximate
from openclaw_rl.judge.voters import EndpointSettings
from openclaw_rl.ports import Policy
from openclaw_rl.types import Message, Prompt, Tokens

TOP = 128
"""likeliest tokens that are searched for the words"""
DEADLINE = 300.0
"""seconds per scoring call: a busy processor needs many for the first, which reads the examples"""
TOP_OF_ENDPOINTS = 20
"""maximum in the OpenAI API"""


class PolicyRater:
    """The base model (version 0) of ``policy``: one scoring call for one token, whose position gives all words.

    Calls run one at a time, and an engine computes replies before scores, so users are not delayed. The examples before
    the question stay in the prefix cache.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._turn = anyio.Semaphore(1)
        self._beginnings: dict[tuple[str, tuple[str, ...]], tuple[Tokens, Tokens]] = {}

    @property
    def model(self) -> str:
        """Return the model's name; a hosted model's name is available once it runs."""
        return f"{self._policy.name}@0"

    @property
    def context(self) -> int | None:
        """Return the maximum prompt length in tokens; None if unknown."""
        return getattr(self._policy, "context", None) or None

    async def count(self, text: str) -> int:
        """Count a text's tokens; use `approximate` while the model is unavailable."""
        try:
            return len(await self._policy.tokenize(text)) - 1  # less the end of the turn
        except (BackendError, RequestError):
            return approximate(text)

    async def rate(self, messages: Sequence[Message], opening: str, words: Sequence[str]) -> tuple[float, ...]:
        """Return the words' log-probs; a word outside the likeliest tokens gets their lowest."""
        async with self._turn:
            try:
                with anyio.fail_after(DEADLINE):
                    begun, labels = await self._begin(opening, tuple(words))
                    prompt = await self._policy.encode(Prompt(messages=tuple(messages)))
                    scores = await self._policy.score((*prompt, *begun), labels[:1], version=0, top_k=TOP)
            except TimeoutError as error:
                raise JudgeUnavailable(f"the model gave no verdict within {DEADLINE:g} s") from error
            except BackendError as error:
                raise JudgeUnavailable(f"the model cannot answer: {error.what}", remedy=error.remedy) from error
        likeliest = dict(zip(scores.top_tokens[0], scores.top_logprobs[0], strict=True)) if scores.top_tokens else {}
        likeliest[labels[0]] = scores.logprobs[0]
        least = min(likeliest.values())
        return tuple(likeliest.get(label, least) for label in labels)

    async def _begin(self, opening: str, words: tuple[str, ...]) -> tuple[Tokens, Tokens]:
        """Return the tokens that start all answers, and the next token for each word."""
        key = (opening, words)
        if key not in self._beginnings:
            answers = [tuple(await self._policy.tokenize(f"{opening}{word}"))[:-1] for word in words]
            same = 0
            while all(len(answer) > same and answer[same] == answers[0][same] for answer in answers):
                same += 1
            labels = tuple(answer[same] if len(answer) > same else -1 for answer in answers)
            if len(set(labels)) != len(words) or -1 in labels:
                raise InvalidValue("words", f"{self.model} begins two of {', '.join(words)} with the same token")
            self._beginnings[key] = answers[0][:same], labels
        return self._beginnings[key]


class EndpointRater:
    """An OpenAI-compatible server with log-probs: it samples one token and returns the alternatives.

    The answer's opening is sent as an assistant message to continue (vLLM, SGLang). A server that refuses this is asked
    for the word alone.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        *,
        budget: TokenBudget | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """``budget`` limits the estimated tokens per day."""
        self._budget = budget or TokenBudget(None)
        self.model = endpoint.model
        self.context: int | None = None
        self._url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        self._continues = True
        headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._client = httpx2.AsyncClient(timeout=endpoint.timeout, headers=headers, transport=transport)

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        await self._client.aclose()

    async def count(self, text: str) -> int:
        """Estimate the tokens, since the endpoint's tokenizer is unavailable."""
        return approximate(text)

    async def rate(self, messages: Sequence[Message], opening: str, words: Sequence[str]) -> tuple[float, ...]:
        """Return the words' log-probs, by the tokens that start them.

        Raises JudgeUnavailable if the server is unreachable or returns no log-probs, or none for these words.
        """
        if not self._budget.left:
            raise JudgeUnavailable(
                f"the judge has used its {self._budget.limit} tokens of today",
                remedy=f"judging resumes at {self._budget.renewal()}, or raise judge.llm.daily_tokens",
            )
        self._budget.spend(sum(approximate(message.content) for message in messages) + 1)
        answer = await self._post(self._body(messages, opening, words))
        if self._continues and answer.status_code in (400, 422):
            self._continues = False
            answer = await self._post(self._body(messages, opening, words))
        if answer.status_code != 200:
            raise JudgeUnavailable(f"the endpoint answered {answer.status_code}", remedy="check judge.llm.base_url")
        top = _likeliest(answer)
        values = [max((value for token, value in top if _begins(token, word)), default=None) for word in words]
        if all(value is None for value in values):
            raise NoLogprobs(f"{self.model} gives no log-probs of {', '.join(words)}")
        least = min(value for _, value in top)
        return tuple(least if value is None else value for value in values)

    async def _post(self, body: dict[str, Any]) -> httpx2.Response:
        try:
            return await self._client.post(self._url, json=body)
        except httpx2.TransportError as error:
            raise JudgeUnavailable(f"no answer: {type(error).__name__}") from error

    def _body(self, messages: Sequence[Message], opening: str, words: Sequence[str]) -> dict[str, Any]:
        chat = [{"role": message.role, "content": message.content} for message in messages]
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": True,
            "top_logprobs": TOP_OF_ENDPOINTS,
        }
        if self._continues:
            chat.append({"role": "assistant", "content": opening})
            return {**body, "messages": chat, "add_generation_prompt": False, "continue_final_message": True}
        chat = [{**entry, "content": _bare(entry["content"], opening)} for entry in chat]
        return {**body, "messages": [*chat[:-1], {**chat[-1], "content": f"{chat[-1]['content']}\n{_one_of(words)}"}]}


class NoLogprobs(JudgeUnavailable):
    """Raised for a server without log-probs for the words; the baseline judge then stays in use."""


def _one_of(words: Sequence[str]) -> str:
    return f"Answer with one word: {', '.join(words)}."


def _bare(content: str, opening: str) -> str:
    """Return an example's answer as a bare word, for a server that cannot continue an answer."""
    return content.removeprefix(opening).removesuffix('"}') if content.startswith(opening) else content


def _begins(token: str, word: str) -> bool:
    """Check if a token equals or starts the word, ignoring case and surrounding marks."""
    bare = token.strip(" \"'\n\u0120\u2581").lower()
    return len(bare) > 1 and word.startswith(bare)


def _likeliest(answer: httpx2.Response) -> list[tuple[str, float]]:
    try:
        first = answer.json()["choices"][0]["logprobs"]["content"][0]
        every = [first, *first.get("top_logprobs", ())]
        return [(str(candidate["token"]), float(candidate["logprob"])) for candidate in every]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise NoLogprobs("the endpoint's answer holds no log-probs") from error
