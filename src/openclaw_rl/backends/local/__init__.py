"""The policy and the trainer on this machine."""
