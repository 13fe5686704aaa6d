"""The SWE environment: repositories with failing tests, as instances in SWE-bench's JSON, without images."""
