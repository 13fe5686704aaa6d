"""Shared parts of Hugging Face backends: loading, templates, adapters, memory."""
