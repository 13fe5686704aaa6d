"""Environments: clients whose reply is the next state. Episodes, and the sandbox that their commands run in."""
