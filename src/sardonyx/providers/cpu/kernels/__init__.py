"""The kernels, by family. Each family turns groups into steps (``select`` says which); ``common`` is what they share.

Kernels import ``program`` and what is below it, never the runtime or a layout pass.
"""
