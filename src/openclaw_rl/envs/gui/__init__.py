"""The gui environment: a real browser, seen as a numbered accessibility tree and acted on by mouse and keyboard."""
