import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import plugin, { PROVIDER } from "../index.js";

/** OpenClaw as far as the plugin sees it. */
function registered() {
  const host = { hooks: {}, provider: undefined };
  plugin.register({
    on: (name, handler) => (host.hooks[name] = handler),
    registerProvider: (provider) => (host.provider = provider),
  });
  return host;
}

const recording = () => {
  const seen = [];
  return { seen, streamFn: (model, context, options) => (seen.push({ model, context, options }), "the stream") };
};

test("the call of a run is joined to the run's context", () => {
  const { hooks, provider } = registered();
  const { seen, streamFn } = recording();
  const context = { runId: "r1", sessionId: "s1", sessionKey: "agent:main:main", trigger: "user", agentId: "main" };
  assert.equal(hooks.before_prompt_build({ prompt: "hello" }, context), undefined);
  const result = provider.wrapStreamFn({ streamFn })("model", "context", { requestId: "r1:model:1", signal: "kept" });
  assert.equal(result, "the stream");
  assert.equal(seen[0].options.signal, "kept");
  assert.equal(seen[0].options.headers["x-session-id"], "s1");
  assert.equal(seen[0].options.headers["x-turn-type"], "main");
  assert.equal(seen[0].options.headers["x-openclaw-rl-call"], "1");
});

test("two runs at once are not confused", () => {
  const { hooks, provider } = registered();
  const { seen, streamFn } = recording();
  const stream = provider.wrapStreamFn({ streamFn });
  hooks.before_prompt_build({}, { runId: "r1", sessionId: "s1", trigger: "user" });
  hooks.before_prompt_build({}, { runId: "r2", sessionId: "s2", trigger: "heartbeat" });
  stream("m", "c", { requestId: "r1:model:2" });
  stream("m", "c", { requestId: "r2:model:1" });
  assert.deepEqual(
    seen.map(({ options }) => [options.headers["x-session-id"], options.headers["x-turn-type"]]),
    [["s1", "main"], ["s2", "side"]],
  );
});

test("headers that are there already win", () => {
  const { provider } = registered();
  const { seen, streamFn } = recording();
  provider.wrapStreamFn({ streamFn })("m", "c", { requestId: "r1:model:1", headers: { "x-openclaw-rl-run": "mine" } });
  assert.equal(seen[0].options.headers["x-openclaw-rl-run"], "mine");
});

test("a call without options is passed on", () => {
  const { provider } = registered();
  const { seen, streamFn } = recording();
  provider.wrapStreamFn({ streamFn })("m", "c", undefined);
  assert.deepEqual(seen[0].options, { headers: {} });
});

test("a direct completion, such as a title, is side", () => {
  const { provider } = registered();
  const { seen, streamFn } = recording();
  provider.wrapSimpleCompletionStreamFn({ streamFn })("m", "c", {});
  assert.deepEqual(seen[0].options.headers, { "x-turn-type": "side" });
});

test("without a stream there is nothing to wrap", () => {
  const { provider } = registered();
  assert.equal(provider.wrapStreamFn({}), undefined);
});

test("the manifest names the plugin and the provider that the code registers", () => {
  const manifest = JSON.parse(readFileSync(new URL("../openclaw.plugin.json", import.meta.url)));
  const { provider } = registered();
  assert.equal(manifest.id, plugin.id);
  assert.deepEqual(manifest.providers, [PROVIDER]);
  assert.equal(provider.id, PROVIDER);
});
