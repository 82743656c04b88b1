"""Fusions into operators of ai.onnx, a file a family. Each class is a pass of its own name."""
