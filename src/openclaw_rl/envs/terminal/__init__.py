"""The terminal environment: commands in a sandbox, and its ladder of tasks."""
