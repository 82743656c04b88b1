"""Sardonyx beside onnxruntime and OpenVINO: times, errors, starts and memory. `python -m benchmarks.compare --help`"""
