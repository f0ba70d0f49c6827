"""Threads, ONNX graphs and progress bars."""
