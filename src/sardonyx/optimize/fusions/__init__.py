"""Fusions into operators of ai.onnx, one file per family. Each class is a pass of its name."""
