"""Preferences, everyday prompts, coding and tool-use tasks with their checkers: data, pure."""
