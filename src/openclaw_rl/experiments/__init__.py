"""Simulated users, the demo, benchmarks of learning and their charts."""
