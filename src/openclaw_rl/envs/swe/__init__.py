"""Repositories with failing tests: instances in SWE-bench's JSON, without images."""
