"""No GPU at all: the policy sampled and trained by Tinker, or by a server that speaks its protocol."""
