"""Checkpoints of this package's in forms that need nothing of it."""
