"""Servers that only this project's tests and benchmarks start; the fakes for plugins are in `openclaw_rl.testing`.

engines    `fake_engine("vllm")`, `fake_engine("sglang")`: their routes on a free port, over a model that echoes
postgres   `PostgresServer`, a real server of PostgreSQL for the ledger, where its programs are installed
tinker     `tinker_server`: the protocol of Tinker with real LoRA numerics over a small model
"""
