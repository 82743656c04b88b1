"""The kernels, by family. Each family turns a group into steps (``select`` says which); ``common`` is what they share.

Imports ``program`` and what is below it, never the runtime or a layout pass.
"""
