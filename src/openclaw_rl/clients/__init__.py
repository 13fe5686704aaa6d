"""The HTTP client for our API, the terminal chat, and the setup for other clients."""
