"""Threads, ONNX graphs, progress bars and numbers with their nouns."""
