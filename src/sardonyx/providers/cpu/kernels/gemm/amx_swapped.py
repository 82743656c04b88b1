"""Shallow products whose results are stored column by column, with the operands swapped, on AMX tiles.

See ``gemm.swapped`` for the reason, and for which products are shallow.
"""

from __future__ import annotations

from sardonyx.providers.cpu.kernels.common.matrices import Problem
from sardonyx.providers.cpu.kernels.gemm import amx
from sardonyx.providers.cpu.kernels.gemm.swapped import is_by_columns, is_narrow, is_shallow, swapped
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal


def supports(p: Problem, analysis: Analysis) -> Refusal | None:
    return amx.supports(swapped(p), analysis)


def pays(p: Problem, analysis: Analysis) -> Refusal | None:
    if not is_by_columns(p):
        return Refusal("results are not stored column by column")
    if not is_shallow(p):
        return Refusal("deep enough for tiles in the order of the operands")
    if amx.terms(p, analysis) == 3 and is_narrow(p):
        return Refusal("few columns, which are rows here")
    return amx.pays(swapped(p), analysis)


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    return amx.steps(swapped(p), analysis)
