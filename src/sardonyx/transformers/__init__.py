"""onnxruntime.transformers' names over Sardonyx's optimizer."""
