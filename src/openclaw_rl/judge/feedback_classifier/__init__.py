"""The feedback classifier: a message's verdict on the reply before it, by a hashed n-gram model and a classifier."""
