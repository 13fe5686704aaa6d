"""The serving engine of this machine: scheduler, model runner, KV cache, sampler."""
