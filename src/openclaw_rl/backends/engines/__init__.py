"""The external engines vLLM and SGLang behind the `Policy` port, reached by URL and dialect, never imported."""
