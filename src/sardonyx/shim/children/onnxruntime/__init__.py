"""What a child of a program under the shim imports as onnxruntime: it gives way to Sardonyx."""

import sys

from sardonyx.shim import as_onnxruntime

del sys.modules["onnxruntime"]
as_onnxruntime()
