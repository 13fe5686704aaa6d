"""The one HTTP client of our API, the terminal chat, and the set-up of other people's clients."""
