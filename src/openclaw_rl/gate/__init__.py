"""The examination before a version is served, the monitor after."""
