"""f32 operands of AMX products as sums of bf16 terms (``bf16``) or as scaled int8 slices (``int8_slices``).

Both files say how operands are split, packed into tiles and checked for their representable range; the
``*_micro_kernel`` files multiply them, and ``deferred_accumulation`` adds the sums of a K-block between the next
products. They import ``kernels.common``; ``gemm``, ``conv`` and ``attention`` import them.
"""
