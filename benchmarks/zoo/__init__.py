"""The models that the benchmarks run: builders by family, and trained models taken over from a folder.

``python -m benchmarks.zoo timed`` writes what ``benchmarks.compare`` times, ``python -m benchmarks.zoo exported`` what
``benchmarks.optimizer`` counts. Most families need torch and transformers (the `bench` extra); ``light``,
``fading``, ``open_shapes`` and ``trained`` do not.
"""
