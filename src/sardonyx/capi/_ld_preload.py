"""onnxruntime's module of this name: libraries to load first. There are none."""
