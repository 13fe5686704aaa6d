"""Evaluation suites, pairwise comparison, and the models under evaluation."""
