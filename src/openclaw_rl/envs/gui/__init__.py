"""The gui environment: a real browser, observed as a numbered accessibility tree, with actions by mouse and
keyboard.
"""
