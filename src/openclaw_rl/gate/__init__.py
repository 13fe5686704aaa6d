"""Examination of a version before it is served, and monitoring afterwards."""
