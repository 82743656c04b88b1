"""Weights in 2, 4 or 8 bits, in blocks of a column; activations stay reals.

``rtn``, ``k_quant``, ``hqq`` and ``gptq`` choose the codes; each is a function from weights to ``pack.Blocked``.
``rewrite`` replaces the nodes of a model. ``matmul_nbits_quantizer``, outside this package, is the public face.
"""
