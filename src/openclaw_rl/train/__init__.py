"""Training loop: turns verdicts into samples, steps and versions."""
