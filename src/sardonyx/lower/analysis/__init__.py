"""What is known about the values of a graph before it runs: shapes and small contents, signs, sizes that divide.

``facts`` (shapes in symbolic sizes, contents), ``multiples`` (sizes taken to be multiples), ``signs`` (storages without
negative numbers), ``steering`` (operands such as shapes and axes). It imports groups and sizes; ``lowering``, the
rules, ``build`` and ``claims`` import it, and providers may.
"""
