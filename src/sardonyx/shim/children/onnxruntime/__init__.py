"""What child processes of a program under the shim import as onnxruntime; it replaces itself by Sardonyx."""

import sys

from sardonyx.shim import as_onnxruntime

del sys.modules["onnxruntime"]
as_onnxruntime()
