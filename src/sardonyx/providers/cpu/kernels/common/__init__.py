"""What several kernel families share.

Operands in memory (``matrices``, ``window``, ``image_block``), loop nests over views (``loop_nest``), windows over NHWC
images (``nhwc_window``), epilogues of products and convolutions (``epilogue``, ``block_epilogue``), the steps of loops
and branches (``control``) and of user-written kernels (``custom``). Every family may import it; it knows ``math``,
``split`` and, for packed images, ``conv``.
"""
