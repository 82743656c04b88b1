"""Which runtimes of Windows the binaries were built with: there are no binaries."""

use_cuda = False
vs2019 = False
