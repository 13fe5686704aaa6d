"""Engines that people already run, vLLM and SGLang, behind the `Policy` port: a URL and a dialect, never an import."""
