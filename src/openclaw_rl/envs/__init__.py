"""Environments: clients whose reply is the next state. Episodes, and the sandbox that programs run in."""
