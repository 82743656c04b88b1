"""What kernels hand to the runtime: steps with typed references to memory, and constants packed for kernels.

Imports ``codegen`` and what is below it. Kernels make steps, the runtime carries them out; neither knows the other.
"""
