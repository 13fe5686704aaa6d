"""Attacks of a web page that the user happens to visit: on a pool of environments, and on the page's door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import pytest

from openclaw_rl.envs.pool.leases import EnvPool, EventLog
from openclaw_rl.envs.pool.server import pool_app
from openclaw_rl.errors import NotAllowed
from openclaw_rl.page.door import Door
from openclaw_rl.testing import FakeClock, FakeEnv

pytestmark = pytest.mark.anyio

TASK = {"task": "a", "seed": 1, "request": "r"}
FOREIGN: list[tuple[Mapping[str, str], int]] = [
    ({"host": "evil.example"}, 403),
    ({"host": "evil.example:30100"}, 403),
    ({"host": "127.0.0.1.evil.example"}, 403),
    ({"host": "[::1"}, 400),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://127.0.0.1:1"}, 403),
    ({"origin": "http://[::1"}, 400),
]


@pytest.fixture
async def pool() -> AsyncIterator[EnvPool]:
    pool = EnvPool(lambda: FakeEnv(rewards=(0.0, 1.0)), capacity=2, ttl=60.0, events=EventLog(), clock=FakeClock())
    yield pool
    await pool.close()


def caller(pool: EnvPool, *, key: str | None = None, host: str = "127.0.0.1") -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=pool_app(pool, key=key)), base_url=f"http://{host}")


@pytest.mark.parametrize(("headers", "status"), FOREIGN)
async def test_without_a_key_a_pool_answers_no_foreign_page(
    pool: EnvPool, headers: Mapping[str, str], status: int
) -> None:
    async with caller(pool) as client:
        lease = (await client.post("/v1/leases", json=TASK)).json()["lease"]
        step = {"reply": {"role": "assistant", "content": "id"}, "request": "s"}
        requests: list[tuple[str, str, Any]] = [
            ("POST", "/v1/leases", {**TASK, "request": "other"}),
            ("POST", f"/v1/leases/{lease}/step", step),
            ("DELETE", f"/v1/leases/{lease}", None),
            ("GET", "/v1/tasks", None),
            ("GET", "/v1/status", None),
        ]
        for method, path, body in requests:
            answer = await client.request(method, path, json=body, headers=dict(headers))
            assert answer.status_code == status, (method, path)
            assert answer.json()["error"]["message"]
        assert (await client.get("/v1/status")).json()["counts"] == {"leased": 1}


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_without_a_key_a_pool_takes_no_body_that_any_page_may_send(pool: EnvPool, kind: str) -> None:
    body = b'{"task": "a", "seed": 1, "request": "r"}'
    async with caller(pool) as client:
        refused = await client.post("/v1/leases", content=body, headers={"content-type": kind} if kind else {})
        assert (refused.status_code, "application/json" in refused.json()["error"]["message"]) == (415, True)
        taken = await client.post(
            "/v1/leases", content=body, headers={"content-type": "application/json; charset=utf-8"}
        )
        assert taken.status_code == 201


async def test_with_a_key_a_pool_answers_by_any_name(pool: EnvPool) -> None:
    async with caller(pool, key="k", host="worker-7") as client:
        answer = await client.post("/v1/leases", json=TASK, headers={"authorization": "Bearer k"})
        assert answer.status_code == 201


# --- keys at the page's door


def tries(door: Door, address: str, count: int) -> list[str]:
    said = []
    for _ in range(count):
        with pytest.raises(NotAllowed) as refused:
            door.log_in("wrong", address=address)
        said.append(refused.value.what)
    return said


def test_wrong_keys_lock_out_neither_other_addresses_nor_the_right_key() -> None:
    clock = FakeClock()
    door = Door({"key-ann": "ann"}, admins=(), clock=clock)
    assert tries(door, "10.0.0.9", 12) == ["this key is not known"] * 10 + ["too many wrong keys"] * 2
    assert tries(door, "10.0.0.8", 1) == ["this key is not known"], "another address begins anew"
    assert door.log_in("key-ann", address="10.0.0.9"), "the right key is admitted from any address"


def test_the_thousand_newest_addresses_are_remembered_and_no_more() -> None:
    door = Door({"key-ann": "ann"}, admins=(), clock=FakeClock())
    tries(door, "10.0.0.9", 10)
    for number in range(999):
        tries(door, f"2001:db8::{number:x}", 1)
    assert tries(door, "10.0.0.9", 1) == ["too many wrong keys"]
    for number in range(1000):
        tries(door, f"2001:db8::1:{number:x}", 1)
    assert tries(door, "10.0.0.9", 1) == ["this key is not known"]
