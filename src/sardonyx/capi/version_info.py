"""onnxruntime's module of this name: Windows runtimes of its binaries. There are no binaries here."""

use_cuda = False
vs2019 = False
