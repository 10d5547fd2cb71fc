"""Owns reading checkpoints, checking them against the manifest, laying weights out to be bound."""
