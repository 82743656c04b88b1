"""onnxruntime's ``capi`` package: the same modules, so that imports from them keep working."""
