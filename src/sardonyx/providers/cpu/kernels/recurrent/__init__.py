"""LSTM, GRU and RNN layers: all time steps of all directions in one kernel.

The input projections are matrix products before it (``kernels.gemm``, ``kernels.quantized``). The kernel takes their
results, the recurrent weights in the packed layout of ``gemm.pack`` (of ``quantized.pack`` if they are bytes), and a
scalar expression for each stage. Only ``select`` imports it.
"""
