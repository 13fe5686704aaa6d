"""Simulated users, the demo, learning benchmarks and their charts."""
