"""A backend without a local GPU: Tinker, or a server with its protocol, samples and trains the policy."""
