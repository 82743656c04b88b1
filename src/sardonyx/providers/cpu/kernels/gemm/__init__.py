"""Matrix products: vector kernels from packed panels, and tile kernels from split operands."""
