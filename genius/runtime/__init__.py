"""How the machine is used: threads, ONNX graphs, progress bars."""
