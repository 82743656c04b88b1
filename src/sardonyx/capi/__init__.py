"""onnxruntime's ``capi`` package, with the same modules, so that imports from them work."""
