"""A pointwise convolution whose result another one adds to its own: one product over the channels of two images.

Residual blocks that change the image size begin so: the shortcut is a convolution too. As one product, the sums of the
shortcut are neither written nor read, and the epilogue runs once (``conv.implicit_gemm``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from sardonyx.ir.scalar import Program
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Convolution, Expression, Group, Storage, View
from sardonyx.providers.cpu.kernels.conv import im2col, on_tiles
from sardonyx.providers.cpu.kernels.conv.packed_image import BLOCK
from sardonyx.providers.cpu.kernels.split.bf16 import PANEL
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.records import Record, replace

NAME = "conv.summed_pair"
"""The name of the kernel variant."""
PLANE = 2
"""Axes of the images."""


class SummedPair(Record):
    """Two convolutions whose sums are added: one step computes them as a single product."""

    first: Convolution
    """The convolution that adds the other's sums, with the epilogue of both."""
    second: Convolution
    """The other convolution; only its image, weights and window are read."""


def summed_pairs(groups: Sequence[Group], analysis: Analysis) -> dict[Storage, SummedPair]:
    """The pairs among ``groups``, by the storage of the second convolution's result, which is never written."""
    if not analysis.isa.amx or analysis.precision != "medium" or not analysis.target.policy.allows(NAME):
        return {}
    reads = Counter(view.storage for group in groups for view in group.reads)
    writes = Counter(view.storage for group in groups for view in group.writes)
    made: dict[Storage, Convolution] = {}
    found: dict[Storage, SummedPair] = {}
    for group in groups:
        if not isinstance(group, Convolution) or not _supports_pair(group, analysis):
            continue
        both = _with_one(group, made)
        if both is not None:
            found[both.second.outputs[0].storage] = both
        elif _only_adds(group):
            storage = group.outputs[0].storage
            is_own = storage.kind == "temporary" and storage not in analysis.shared
            if is_own and reads[storage] == writes[storage] == 1:
                made[storage] = group
    return found


def _supports_pair(group: Convolution, analysis: Analysis) -> bool:
    """Whether a convolution may be in a pair: 1 x 1, unpadded, in one term, filling tiles with channels and filters."""
    window, (filters, channels, *_) = group.window, group.w.shape
    is_single = len(window.kernel) == PLANE and set(window.kernel) == {1} and not any(window.pads)
    if not is_single or not all(isinstance(d, int) for d in (filters, channels, *group.box[2:])):
        return False
    is_full = int(filters) % PANEL == 0 and int(channels) % BLOCK == 0
    has_many_outputs = im2col.has_few_outputs(group, analysis) is False
    return is_full and has_many_outputs and on_tiles.takes(group, analysis) and on_tiles.terms(group, analysis) == 1


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    """The steps of a pair; ``group`` is the convolution that adds the sums of the other one."""
    pair = next(analysis.summed_pairs[v.storage] for v in group.extra if v.storage in analysis.summed_pairs)
    return on_tiles.steps(pair.first, analysis, pair.second)


def _with_one(group: Convolution, made: Mapping[Storage, Convolution]) -> SummedPair | None:
    """The pair of ``group`` and the first convolution in ``made`` whose result ``group`` adds to its sums; None if
    there is none. ``made`` has convolutions by their results.
    """
    for i, view in enumerate(group.extra):
        other = made.get(view.storage)
        if other is None or not _is_all(view, other.outputs[0]) or other.w.dtype is not group.w.dtype:
            continue
        total = _added(group.epilogue, 1 + i)
        if total is not None:
            nodes = tuple(dict.fromkeys(other.nodes + group.nodes))
            extra = (*group.extra[:i], *group.extra[i + 1 :], *other.extra)
            epilogue = _without(group.epilogue, 1 + i, total, other.epilogue)
            return SummedPair(replace(group, nodes=nodes, extra=extra, epilogue=epilogue), other)
    return None


def _is_all(view: View, out: View) -> bool:
    return view.shape == out.shape and views.same_elements(view, out)


def _only_adds(group: Convolution) -> bool:
    """Whether the epilogue only adds one number for each filter, or nothing."""
    expression = group.epilogue
    totals = _totals(expression)
    is_even = not any(s for v in group.extra for s in (v.strides[0], *v.strides[2:]))
    return is_even and len(totals) == 1 + len(expression.steps) and expression.results == (totals[-1],)


def _totals(expression: Expression) -> list[int]:
    """The numbers of the values that the sum (number 0) becomes as operands are added to it, one after the other.

    Each of these values is used by the next one only.
    """
    operands, found = len(expression.operands), [0]
    uses = _uses(expression)
    for number, step in enumerate(_applied(expression), operands):
        if found[-1] in step.args:
            others = [a for a in step.args if a != found[-1]]
            if uses[found[-1]] > 1 or not _is_add(step.program) or max(others) >= operands:
                break
            found.append(number)
    return found


def _applied(expression: Expression) -> list[Apply]:
    return [step for step in expression.steps if isinstance(step, Apply)]


def _uses(expression: Expression) -> Counter[int]:
    return Counter(expression.results) + Counter(a for step in _applied(expression) for a in step.args)


def _is_add(program: Program) -> bool:
    return program.arity == 2 and [step.op for step in program.steps] == ["arg", "arg", "add"]


def _added(expression: Expression, operand: int) -> int | None:
    """The total (``_totals``) to which ``operand`` is added; None if the operand has another use."""
    if _uses(expression)[operand] != 1:
        return None
    totals, steps = _totals(expression), _applied(expression)
    first = len(expression.operands)
    return next((a for a, b in pairwise(totals) if operand in steps[b - first].args), None)


def _without(expression: Expression, operand: int, total: int, other: Expression) -> Expression:
    """The epilogue of a pair; its operand 0 is both sums in one.

    ``expression`` added ``operand``, the result of the epilogue ``other``, to ``total``. Instead, the steps of
    ``other`` are applied to ``total``. The further operands of ``other`` come last.
    """
    before = [n for n in range(len(expression.operands)) if n != operand]
    operands = (*(expression.operands[n] for n in before), *other.operands[1:])
    values = {n: i for i, n in enumerate(before)}
    steps: list[Apply] = []

    def add(step: Apply, known: Mapping[int, int]) -> int:
        steps.append(replace(step, args=tuple(known[a] for a in step.args)))
        return len(operands) + len(steps) - 1

    for number, step in enumerate(_applied(expression), len(expression.operands)):
        if operand not in step.args:
            values[number] = add(step, values)
            continue
        others = {0: values[total]} | {n: len(before) + n - 1 for n in range(1, len(other.operands))}
        for n, following in enumerate(_applied(other), len(other.operands)):
            others[n] = add(following, others)
        values[number] = others[other.results[0]]
    return Expression(operands, tuple(steps), tuple(values[n] for n in expression.results))
