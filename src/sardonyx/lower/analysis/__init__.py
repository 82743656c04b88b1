"""What is known about the values of a graph before it runs.

``facts`` (symbolic shapes, contents of small tensors), ``multiples`` (sizes assumed to be multiples of a number),
``signs`` (storages without negative numbers), ``compile_time`` (operands such as shapes and axes, whose elements must
be known). It imports groups and sizes; ``lowering``, the rules, ``build`` and ``claims`` import it, and providers may.
"""
