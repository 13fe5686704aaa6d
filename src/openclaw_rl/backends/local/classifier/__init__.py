"""A sequence-classification model in a separate process."""
