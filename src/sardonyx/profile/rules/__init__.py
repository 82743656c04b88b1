"""The problems that a diagnosis looks for, one file for each kind. A rule takes facts and yields findings.

Rules decide by what can be counted: nodes, bytes, operations, threads, files of the system. Times only tell what a
problem costs, except where the calls of a program are judged.
"""
