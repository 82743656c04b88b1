"""What the optimizer leaves of models, whether they load elsewhere, how long it takes.

``python -m benchmarks.optimizer --help``
"""
