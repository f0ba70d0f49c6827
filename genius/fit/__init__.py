"""Fit: codebooks and a decoder for any encoder, learned from a collection without labels."""
