"""The learned reader: what a message says of the reply before it, by a hashed n-gram model and a classifier."""
