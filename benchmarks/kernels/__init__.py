"""Operators alone: how fast is each, how near the machine's limit, and how exact? `python -m benchmarks.kernels --help`

Cases are data, by family. Each becomes a model of one operator (and what follows it in networks) in a temporary folder,
and ``benchmarks.compare`` times it.
"""
