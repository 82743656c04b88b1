"""The machine at hand: instruction set and caches, objects kept on disk, build tasks on several threads.

Imports ``memory`` alone.
"""
