"""Attention: softmax(Q K^T) V in blocks of keys with an online softmax, and linear attention.

``vector`` and ``amx`` are the kernels for f32 vectors and for bf16 terms on AMX tiles (``amx_head``, ``amx_block`` and
``amx_mask`` are parts of the latter); ``config`` is what both take at compile time, and ``linear`` the recurrence of
linear attention. They use ``kernels.common``, ``gemm`` and ``split``. ``select`` imports them, and ``layout`` asks
which packed operands they read.
"""
