"""Wiring: config in, running loops out."""
