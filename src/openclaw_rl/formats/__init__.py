"""Model text <-> messages: tool calls, streamed JSON, content parts, reasoning, template variables."""
