"""Products and convolutions of 8-bit integers with i32 sums (MatMulInteger, ConvInteger, QLinear* and QDQ fusions).

``byte_dot`` is the 4-way dot product on each instruction set, ``pack`` the operand layout that all kernels read, and
``gemm``, ``gemm_amx`` and ``conv`` (with ``conv_kernel`` and ``conv_block``) are the kernels. They use
``kernels.common`` and the blocking of ``kernels.gemm``. ``gemm.contraction`` and ``select`` import them.
"""
