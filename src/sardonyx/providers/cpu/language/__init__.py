"""The kernel language: Python that writes LLVM IR.

``dsl`` declares kernels, ``writer`` is what a kernel's body calls, ``values`` its numbers, vectors and memory,
``builder`` and ``text`` the IR below. ``context`` names the words that native code and Python share. What kernels ask
of threads and the system is here too: ``scheduler``, ``spin_park``, ``language.polling``, ``system``.

Imports ``machine`` and ``memory``. Kernels, codegen and the runtime's native parts are written in it.
"""
