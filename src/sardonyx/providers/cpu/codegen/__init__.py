"""From a kernel's IR to a native function: compiler, loader of ELF objects, linker, and calls by hand.

Imports ``language`` and what is below it.
"""
