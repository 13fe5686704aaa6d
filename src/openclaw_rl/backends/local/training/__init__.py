"""The trainer of this machine: batch, forward pass, step, checkpoint."""
