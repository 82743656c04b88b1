"""ONNX bytes to graph and back."""
