"""Fusions into onnxruntime's own operators, one file per family, for models that are saved with ``spelling="contrib"``.

Each class is a pass of its name. onnxruntime's CPU provider runs the results; ``normalize`` expands them again.
"""

MICROSOFT = "com.microsoft"
