import assert from "node:assert/strict";
import test from "node:test";

import { REMEMBERED, Runs, headersOf, parseCall, turnType } from "../marks.js";

const person = { trigger: "user", sessionKey: "agent:main:main" };

test("a run that a person started is main", () => {
  assert.equal(turnType(person), "main");
  assert.equal(turnType({ ...person, inputProvenance: { kind: "external_user" } }), "main");
});

for (const trigger of ["cron", "heartbeat", "memory", "overflow", "manual"]) {
  test(`a ${trigger} run is side`, () => assert.equal(turnType({ ...person, trigger }), "side"));
}

for (const key of [
  "agent:main:subagent:152d2b9c-557f-4bc4-94a3-a363d2f46083",
  "agent:main:cron:cd4cf0e8:run:7fc68d25",
  "agent:main:main:internal-session-effects:9",
  "agent:main:main:heartbeat",
]) {
  test(`a run under ${key} is side, whatever started it`, () =>
    assert.equal(turnType({ trigger: "user", sessionKey: key }), "side"));
}

test("a sub-agent's announcement in its parent's session is side", () => {
  assert.equal(turnType({ ...person, inputProvenance: { kind: "inter_session", sourceTool: "subagent_announce" } }), "side");
});

test("a session whose own name says cron is a person's", () => {
  assert.equal(turnType({ trigger: "user", sessionKey: "agent:main:my-cron-notes" }), "main");
});

test("where nothing tells, nothing is said", () => {
  assert.equal(turnType({}), undefined);
  assert.equal(turnType({ trigger: "something new", sessionKey: "agent:main:main" }), undefined);
});

test("a request id names the run and the call in it", () => {
  assert.deepEqual(parseCall("chatcmpl_d239ad79:model:3"), { runId: "chatcmpl_d239ad79", index: 3 });
  assert.deepEqual(parseCall("9f79:compaction:cmp-1:model:2"), { runId: "9f79:compaction:cmp-1", index: 2 });
  assert.equal(parseCall("something else"), undefined);
  assert.equal(parseCall(undefined), undefined);
});

test("a call of a known run carries all that is known", () => {
  const context = { ...person, runId: "r1", sessionId: "s1", agentId: "main" };
  assert.deepEqual(headersOf({ runId: "r1", index: 2 }, context, undefined), {
    "x-session-id": "s1",
    "x-turn-type": "main",
    "x-openclaw-rl-session-key": "agent:main:main",
    "x-openclaw-rl-agent": "main",
    "x-openclaw-rl-trigger": "user",
    "x-openclaw-rl-run": "r1",
    "x-openclaw-rl-call": "2",
  });
});

test("the epoch of a conversation is part of its name where it is at hand", () => {
  const name = (affinity) => headersOf({ runId: "r1", index: 1 }, { sessionId: "s1" }, affinity)["x-session-id"];
  assert.equal(name("s1:4"), "s1:4");
  assert.equal(name("s1"), "s1");
  assert.equal(name("another:4"), "s1");
});

test("a compaction is side although its run was never announced", () => {
  const headers = headersOf({ runId: "9f79:compaction:cmp-1", index: 1 }, undefined, undefined);
  assert.equal(headers["x-turn-type"], "side");
});

test("of an unknown run only the ids are said", () => {
  assert.deepEqual(headersOf({ runId: "r9", index: 1 }, undefined, undefined), {
    "x-openclaw-rl-run": "r9",
    "x-openclaw-rl-call": "1",
  });
  assert.deepEqual(headersOf(undefined, undefined, undefined), {});
});

test("what cannot stand in a header is left out", () => {
  const context = { sessionId: "s1", sessionKey: "agent:main:naïve\r\nx: y", trigger: "user" };
  const headers = headersOf({ runId: "r".repeat(300), index: 1 }, context, undefined);
  assert.deepEqual(Object.keys(headers).sort(), ["x-openclaw-rl-call", "x-openclaw-rl-trigger", "x-session-id", "x-turn-type"]);
});

test("the oldest runs are forgotten, a run seen again is young", () => {
  const runs = new Runs();
  runs.note({ runId: "kept", trigger: "cron" });
  for (let n = 0; n < REMEMBERED - 1; n += 1) runs.note({ runId: `r${n}` });
  runs.note({ runId: "kept", trigger: "user" });
  runs.note({ runId: "one more" });
  assert.equal(runs.find("kept").trigger, "user");
  assert.equal(runs.find("r0"), undefined);
  assert.equal(runs.find("r1").runId, "r1");
});

test("a context without a run id is not kept", () => {
  const runs = new Runs();
  runs.note(undefined);
  runs.note({ trigger: "user" });
  assert.equal(runs.find(undefined), undefined);
});
