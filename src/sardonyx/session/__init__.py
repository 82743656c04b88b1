"""The public, onnxruntime-shaped API."""
