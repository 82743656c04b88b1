"""Convolutions: direct, implicit GEMM on AMX, Winograd, depthwise, pointwise and stem kernels, in NCHW and NHWC.

Files without a suffix or with ``_nchw`` and ``_nhwc`` are vector kernels; ``dot_product`` and ``im2col`` are those for
few filters and few outputs. ``implicit_gemm``, ``bf16_split`` and ``int8_slices`` are the AMX kernels; they read packed
images (``packed_image``, ``pack_image*``) and write them (``image_epilogue``). They use ``kernels.common``, ``gemm``,
``split`` and ``math``. ``select`` imports them, and ``layout`` asks what they support.
"""
