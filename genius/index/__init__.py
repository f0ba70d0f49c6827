"""A collection on disk."""
