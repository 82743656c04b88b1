"""Pre- and post-processing in the graph, and outside of it. `python -m benchmarks.pipeline --help`"""
