"""What a model is, and how two models or engines differ: ``inspect_model`` and ``compare_models``.

    import sardonyx
    print(sardonyx.inspect_model("model.onnx"))
    print(sardonyx.compare_models("float.onnx", "int8.onnx"))

Inspecting compiles nothing and runs nothing; comparing runs both.
"""
