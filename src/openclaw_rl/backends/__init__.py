"""Policies and trainers that stand behind the ports."""
