"""How accurate are quantized models? Trained nets, quantized by Sardonyx and by onnxruntime on the same data."""
