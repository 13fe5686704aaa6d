"""A sequence-classification model in a process of its own."""
