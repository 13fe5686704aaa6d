"""Environments of others that keep Gymnasium's interface, as they are."""
