"""The terminal environment: commands in a sandbox, and its curriculum of tasks."""
