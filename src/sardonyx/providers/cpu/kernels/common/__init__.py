"""Shared by several kernel families: matrices and windows in memory, loop nests, epilogues, control-flow steps."""
