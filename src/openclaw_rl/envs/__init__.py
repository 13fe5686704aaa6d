"""Environments: clients whose reply is the next state; their episodes, and the sandbox for their commands."""
