"""The parts of `benchmarks/soak.py`: clients that talk, and the system under load with its faults."""
