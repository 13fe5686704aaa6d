"""Policies and trainers that implement the ports."""
