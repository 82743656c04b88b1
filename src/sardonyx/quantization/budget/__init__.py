"""Quantization within a budget: ``quantize_static(..., budget=..., metric=...)``.

goal.py      what a model may lose, and what the search may cost
samples.py   calibration and evaluation samples, kept for all trials
layers.py    the layers of a model: what is quantized or kept in float together
damage.py    what quantization costs: SQNR, cosine, the metric
latency.py   what it gains on this machine: interleaved runs, profiles
maker.py     models with some layers in float, from one calibration
remedies.py  equalization, SmoothQuant, per-channel weights, bias correction
search.py    the order in which all this is tried
report.py    what was found, as text and JSON
"""
