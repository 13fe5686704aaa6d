"""The gui environment: a real browser as a numbered accessibility tree, with mouse and keyboard actions."""
