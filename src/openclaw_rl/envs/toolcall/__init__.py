"""The tool-call environment: functions to call, its ladder of tasks, and tasks and tools of a user's own."""
