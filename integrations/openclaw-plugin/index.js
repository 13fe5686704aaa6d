// Marks each model call of the provider "openclaw-rl" with its conversation and kind. The run's context is seen when
// its prompt is built; each call of the run is seen by the provider's stream wrapper; the run id joins the two.

import { Runs, SIDE_HEADERS, headersOf, parseCall } from "./marks.js";

export const PROVIDER = "openclaw-rl";

/** A stream function that calls ``inner`` with more headers; the caller's own win. */
export function withHeaders(inner, headersFor) {
  return (model, context, options) =>
    inner(model, context, { ...options, headers: { ...headersFor(options), ...options?.headers } });
}

export function headersForRun(runs, options) {
  const call = parseCall(options?.requestId);
  return headersOf(call, call && runs.find(call.runId), options?.promptCacheKey ?? options?.sessionId);
}

export default {
  id: "openclaw-rl",
  name: "OpenClaw-RL",
  description: "Tells an OpenClaw-RL server which conversation each model call belongs to.",
  register(api) {
    const runs = new Runs();
    api.on("before_prompt_build", (_event, context) => runs.note(context));
    api.registerProvider({
      id: PROVIDER,
      label: "OpenClaw-RL",
      auth: [],
      wrapStreamFn: ({ streamFn }) => streamFn && withHeaders(streamFn, (options) => headersForRun(runs, options)),
      wrapSimpleCompletionStreamFn: ({ streamFn }) => streamFn && withHeaders(streamFn, () => SIDE_HEADERS),
    });
  },
};
