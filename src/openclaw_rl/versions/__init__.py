"""The life of a version: checkpoints, what is kept on disk, going back."""
