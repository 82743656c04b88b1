"""Convolutions: direct, implicit GEMM on tiles, Winograd, depthwise, pointwise and stem kernels, in NCHW and NHWC."""
