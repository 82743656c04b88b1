"""Image operators without weights: pooling (NCHW and NHWC), Resize, GridSample, RoiAlign.

Each file has the kernel of one operator and the ``steps`` function that chooses its configuration; ``resize_*`` and
``pool_rows`` are the inner loops of ``resize`` and ``pool_nchw``. These kernels use ``kernels.common`` (windows,
epilogues) and ``kernels.math``. Only ``select`` imports them, and ``layout`` asks what they support.
"""
