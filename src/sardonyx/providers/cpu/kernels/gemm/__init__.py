"""Matrix products: vector kernels from packed panels, AMX kernels from operands split into bf16 terms or int8 slices.

``contraction`` chooses the kernel of a product; ``vector``, ``amx`` (its loops are in ``amx_kernel``) and
``int8_slices`` are the kernels. ``pack`` packs panels, ``macro_tile`` blocks for caches, ``packed_epilogue`` packs
results for the product that reads them, ``f32_fallback`` recomputes what is not representable. They use
``kernels.common``, ``split`` and ``math``; other families import the blocking and packing.
"""
