"""Matrix products, of quantized operands too."""

from collections.abc import Callable
from typing import Any

from sardonyx.lower.groups import Contraction, Group
from sardonyx.providers.cpu.kernels.common.matrices import Problem
from sardonyx.providers.cpu.kernels.gemm import (
    amx,
    amx_swapped,
    blocks_amx,
    blocks_few_rows,
    blocks_pack,
    blocks_vector,
    contraction,
    int8_slices,
    swapped,
)
from sardonyx.providers.cpu.kernels.gemm.contraction import problem_of
from sardonyx.providers.cpu.kernels.quantized import gemm as quantized_gemm
from sardonyx.providers.cpu.kernels.quantized import gemm_amx as quantized_gemm_amx
from sardonyx.providers.cpu.kernels.quantized import gemm_amx_pipelined
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import FewSizes, Refusal, Variant

Taken = Callable[[Problem, Analysis], Refusal | None]


def _product(name: str, steps: Callable[[Problem, Analysis], list[Step]], supports: Taken, **more: Any) -> Variant:
    """A variant whose kernel takes a contraction as a ``Problem``."""

    def refusal(group: Contraction, analysis: Analysis) -> Refusal | None:
        return contraction.refusal(group) or supports(problem_of(group, analysis), analysis)

    def of_problem(take: Callable[[Problem, Analysis], Any]) -> Callable[[Contraction, Analysis], Any]:
        return lambda group, analysis: take(problem_of(group, analysis), analysis)

    taken = {key: of_problem(take) for key, take in more.items() if key != "few"}
    return Variant(name, of_problem(steps), refusal, few=more.get("few"), **taken)


_FEW_ROWS = FewSizes(
    lambda group, analysis: contraction.few_rows(problem_of(group, analysis), analysis), ("gemm.vector",)
)
_FEW_FOR_BLOCKS = FewSizes(
    lambda group, analysis: blocks_few_rows.few_rows(problem_of(group, analysis), analysis), ("gemm.blocks_few_rows",)
)
_FEW_FOR_LANES = FewSizes(
    lambda group, analysis: swapped.few_rows(problem_of(group, analysis), analysis), ("gemm.vector",)
)

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {
    Contraction: (
        _product("quantized.gemm_amx_pipelined", gemm_amx_pipelined.steps, gemm_amx_pipelined.supports),
        _product("quantized.gemm_amx", quantized_gemm_amx.steps, quantized_gemm_amx.supports),
        _product("quantized.gemm", quantized_gemm.steps, quantized_gemm.supports),
        _product("gemm.blocks_amx", blocks_amx.steps, blocks_amx.supports, pays=blocks_amx.pays, few=_FEW_FOR_BLOCKS),
        _product("gemm.blocks_few_rows", blocks_few_rows.steps, blocks_pack.refusal, pays=blocks_few_rows.pays),
        _product("gemm.blocks_vector", blocks_vector.steps, blocks_pack.refusal, few=_FEW_FOR_BLOCKS),
        _product("gemm.amx_swapped", amx_swapped.steps, amx_swapped.supports, pays=amx_swapped.pays),
        _product("gemm.swapped", swapped.steps, swapped.supports, pays=swapped.pays, few=_FEW_FOR_LANES),
        _product("gemm.int8_slices", int8_slices.steps, int8_slices.supports, pays=int8_slices.pays, few=_FEW_ROWS),
        _product("gemm.amx", amx.steps, amx.supports, pays=amx.pays, few=_FEW_ROWS),
        _product(
            "gemm.vector",
            contraction.multiply_adds,
            contraction.multiply_adds_refusal,
            few_steps=contraction.few_rows_steps,
        ),
    ),
}
