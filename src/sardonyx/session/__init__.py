"""The public API, in the shape of onnxruntime's."""
