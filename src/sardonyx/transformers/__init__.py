"""onnxruntime.transformers' API over Sardonyx's optimizer."""
