"""Fusions into onnxruntime's own operators, a file a family, for models that are saved in its spelling.

Each class is a pass of its own name. onnxruntime's CPU provider runs what they write; ``normalize`` takes it apart.
"""

MICROSOFT = "com.microsoft"
