"""The CPU provider: groups of nodes compiled to native code for the chip at hand.

    provider  ->  compile, dynamic_partition     from a part of a graph to what runs it
                  pipeline                       from groups to steps: layout passes, then kernels
                  layout, select                 where values lie; which kernels carry out a group
                  kernels                        by family
                  runtime                        step table, plans, thread team, native executor
                  program                        steps and packed constants, between kernels and runtime
                  codegen, language              kernels as Python, as LLVM IR, as native functions
                  machine, memory                the chip, and the process's memory

Each line imports only from those below it.
"""

from sardonyx.providers.cpu.provider import CpuProvider

__all__ = ["CpuProvider"]
