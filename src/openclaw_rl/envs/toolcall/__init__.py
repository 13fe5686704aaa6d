"""The tool-call environment: functions to call, its curriculum of tasks, and tasks and tools from a user."""
