"""Models that rate words: a policy on this machine by its scores, an endpoint by its log-probs."""

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
"""of the likeliest tokens, among which the words are looked for"""
DEADLINE = 300.0
"""seconds of a scoring call: a busy processor takes many for the first, which reads the examples"""
TOP_OF_ENDPOINTS = 20
"""the most that the OpenAI API gives"""


class PolicyRater:
    """The base model (version 0) of ``policy``: one scoring call of one token, whose position gives all words.

    One call at a time, and an engine computes replies before scores: users are not delayed. The examples in front of
    the question stay in its prefix cache.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._turn = anyio.Semaphore(1)
        self._beginnings: dict[tuple[str, tuple[str, ...]], tuple[Tokens, Tokens]] = {}

    @property
    def model(self) -> str:
        """The model's name; of a hosted one it is known once it runs."""
        return f"{self._policy.name}@0"

    @property
    def context(self) -> int | None:
        """The most tokens of a prompt."""
        return getattr(self._policy, "context", None) or None

    async def count(self, text: str) -> int:
        """The tokens of a text; as good as `approximate` while the model cannot be asked."""
        try:
            return len(await self._policy.tokenize(text)) - 1  # less the end of the turn
        except (BackendError, RequestError):
            return approximate(text)

    async def rate(self, messages: Sequence[Message], opening: str, words: Sequence[str]) -> tuple[float, ...]:
        """The words' log-probs; one that is not among the likeliest is below all that are."""
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
        """The tokens that all answers begin with, and the token of each word after them."""
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
    """An OpenAI-compatible server that gives log-probs: one token is sampled, and its alternatives are read.

    The answer's beginning is sent as an assistant message to be continued (vLLM, SGLang). A server that begins a
    message of its own is asked for the word alone.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        *,
        budget: TokenBudget | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """``budget`` bounds the tokens of a day, which are estimated."""
        self._budget = budget or TokenBudget(None)
        self.model = endpoint.model
        self.context: int | None = None
        self._url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        self._continues = True
        headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._client = httpx2.AsyncClient(timeout=endpoint.timeout, headers=headers, transport=transport)

    async def close(self) -> None:
        """Give the connections back. Safe to call twice."""
        await self._client.aclose()

    async def count(self, text: str) -> int:
        """An estimate: the endpoint's tokens are not at hand."""
        return approximate(text)

    async def rate(self, messages: Sequence[Message], opening: str, words: Sequence[str]) -> tuple[float, ...]:
        """The words' log-probs, by the tokens that begin them.

        Raises JudgeUnavailable where the server cannot be reached, gives no log-probs, or none of a word.
        """
        if not self._budget.left:
            raise JudgeUnavailable(
                f"the judge has used its {self._budget.limit} tokens of today",
                remedy=f"it goes on at {self._budget.renewal()}, or raise judge.llm.daily_tokens",
            )
        self._budget.spend(sum(approximate(message.content) for message in messages) + 1)
        answer = await self._post(self._body(messages, opening, words))
        if self._continues and answer.status_code in (400, 422):
            self._continues = False
            answer = await self._post(self._body(messages, opening, words))
        if answer.status_code != 200:
            raise JudgeUnavailable(f"the endpoint answered {answer.status_code}", remedy="check judge.llm.base_url")
        top = _likeliest(answer)
        found = [max((value for token, value in top if _begins(token, word)), default=None) for word in words]
        if all(value is None for value in found):
            raise NoLogprobs(f"{self.model} gives no log-probs of {', '.join(words)}")
        least = min(value for _, value in top)
        return tuple(least if value is None else value for value in found)

    async def _post(self, body: dict[str, Any]) -> httpx2.Response:
        try:
            return await self._client.post(self._url, json=body)
        except httpx2.TransportError as error:
            raise JudgeUnavailable(f"no answer: {type(error).__name__}") from error

    def _body(self, messages: Sequence[Message], opening: str, words: Sequence[str]) -> dict[str, Any]:
        said = [{"role": message.role, "content": message.content} for message in messages]
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": True,
            "top_logprobs": TOP_OF_ENDPOINTS,
        }
        if self._continues:
            said.append({"role": "assistant", "content": opening})
            return {**body, "messages": said, "add_generation_prompt": False, "continue_final_message": True}
        said = [{**each, "content": _bare(each["content"], opening)} for each in said]
        return {**body, "messages": [*said[:-1], {**said[-1], "content": f"{said[-1]['content']}\n{_one_of(words)}"}]}


class NoLogprobs(JudgeUnavailable):
    """A server that gives no log-probs of the words: it is asked for votes by text instead."""


def _one_of(words: Sequence[str]) -> str:
    return f"Answer with one word: {', '.join(words)}."


def _bare(content: str, opening: str) -> str:
    """An example's answer as a bare word, as it is asked for where an answer cannot be begun."""
    return content.removeprefix(opening).removesuffix('"}') if content.startswith(opening) else content


def _begins(token: str, word: str) -> bool:
    """Whether a token is the word or its beginning, whatever its case and the marks around it."""
    bare = token.strip(" \"'\n\u0120\u2581").lower()
    return len(bare) > 1 and word.startswith(bare)


def _likeliest(answer: httpx2.Response) -> list[tuple[str, float]]:
    try:
        first = answer.json()["choices"][0]["logprobs"]["content"][0]
        every = [first, *first.get("top_logprobs", ())]
        return [(str(each["token"]), float(each["logprob"])) for each in every]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise NoLogprobs("the endpoint's answer holds no log-probs") from error
