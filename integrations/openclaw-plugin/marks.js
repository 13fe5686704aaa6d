// What is said about a model call, and how it is found out. Pure: nothing here knows OpenClaw's objects beyond the
// plain fields of a run's context.

/** How many runs are remembered: far more than can be under way at once. */
export const REMEMBERED = 512;

const SIDE_TRIGGERS = new Set(["cron", "heartbeat", "memory", "overflow", "manual"]);
const SIDE_KEYS = /:(?:subagent|cron|heartbeat|acp|internal-session-effects)(?::|$)/;
const SIDE_RUNS = /:compaction:/;
const CALL = /^(.+):model:(\d+)$/;

/**
 * "main" for a run that a person started, "side" for one that the agent started by itself, undefined where the
 * context does not tell: then the server finds out.
 */
export function turnType({ trigger, sessionKey, inputProvenance } = {}) {
  if (SIDE_TRIGGERS.has(trigger)) return "side";
  if (sessionKey && SIDE_KEYS.test(sessionKey)) return "side";
  const origin = inputProvenance?.kind;
  if (origin && origin !== "external_user") return "side"; // another session speaks, such as a sub-agent's announcement
  return trigger === "user" ? "main" : undefined;
}

/** The run and the number of the call in it, from a request id such as "RUN:model:3"; undefined for any other id. */
export function parseCall(requestId) {
  const found = CALL.exec(requestId ?? "");
  return found ? { runId: found[1], index: Number(found[2]) } : undefined;
}

/** The contexts of the latest runs, by run id. */
export class Runs {
  #contexts = new Map();

  note(context) {
    if (!context?.runId) return;
    this.#contexts.delete(context.runId);
    this.#contexts.set(context.runId, context);
    if (this.#contexts.size > REMEMBERED) this.#contexts.delete(this.#contexts.keys().next().value);
  }

  find(runId) {
    return this.#contexts.get(runId);
  }
}

/** The headers of one call: of a known run all that is known, of an unknown one only what its request id says. */
export function headersOf(call, context, affinity) {
  const said = {
    "x-session-id": conversation(context?.sessionId, affinity),
    "x-turn-type": context ? turnType(context) : SIDE_RUNS.test(call?.runId) ? "side" : undefined,
    "x-openclaw-rl-session-key": context?.sessionKey,
    "x-openclaw-rl-agent": context?.agentId,
    "x-openclaw-rl-trigger": context?.trigger,
    "x-openclaw-rl-run": call?.runId,
    "x-openclaw-rl-call": call && String(call.index),
  };
  return Object.fromEntries(Object.entries(said).filter(([, value]) => isHeader(value)));
}

/** A call that no run stands behind: a title, a recap, a summary. */
export const SIDE_HEADERS = Object.freeze({ "x-turn-type": "side" });

/**
 * The conversation's name. OpenClaw's own cache key for it is "SESSION:EPOCH", whose epoch moves at each compaction
 * and reset while the session id stays; it is the better name wherever it is at hand.
 */
function conversation(sessionId, affinity) {
  return sessionId && affinity?.startsWith(`${sessionId}:`) ? affinity : sessionId;
}

function isHeader(value) {
  return typeof value === "string" && value.length > 0 && value.length <= 256 && /^[\x20-\x7e]+$/.test(value);
}
