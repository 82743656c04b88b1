"""Memory of the process: pages, slabs of huge pages, the allocator, the pool of outputs, guard pages.

The lowest package of the provider: it imports nothing of it, and everything else may import it.
"""
