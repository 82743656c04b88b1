"""What runs a compiled part: step table, plans and arenas, thread team, native executor, serialization, profile.

Imports ``program`` and what is below it, never a kernel.
"""
