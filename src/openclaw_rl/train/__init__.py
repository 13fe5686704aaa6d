"""Loop 4: verdicts become samples, steps and versions."""
