"""Time by fused group, beside the least time that the machine's rates allow."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.providers.cpu.codegen.rates import Rates
from sardonyx.report.collect.families import family_of, leading
from sardonyx.report.collect.groups import Group
from sardonyx.report.collect.run import Work
from sardonyx.report.records import Layer


def layers_of(groups: Sequence[Group], work: Sequence[Work], rates: Rates, precision: str) -> list[Layer]:
    """A layer for each group whose kernels ran, in execution order; bodies of control flow have layers of their own."""
    number = {node: i for i, group in enumerate(groups) for node in group.nodes}
    of_group: dict[int, list[Work]] = {}
    others: dict[str, list[Work]] = {}
    for each in work:
        owner = next((number[node] for node in each.nodes if node in number), None)
        if owner is not None:
            of_group.setdefault(owner, []).append(each)
        else:
            others.setdefault(each.nodes[-1].label if each.nodes else each.kernel, []).append(each)
    found = [_layer(i, groups[i], of_group[i], rates, precision) for i in sorted(of_group)]
    return found + [_inner(name, each, rates, precision) for name, each in others.items()]


def _layer(number: int, group: Group, work: Sequence[Work], rates: Rates, precision: str) -> Layer:
    lead = leading([node.op_type for node in group.nodes])
    node = next(n for n in group.nodes if n.op_type == lead)
    name = node.name or node.outputs[0].name
    return _summed(name, ", ".join(dict.fromkeys(group.kernels)), lead, work, rates, precision, number)


def _inner(name: str, work: Sequence[Work], rates: Rates, precision: str) -> Layer:
    kernel = ", ".join(dict.fromkeys(w.kernel for w in work))
    op_type = work[0].nodes[-1].op_type if work[0].nodes else ""
    return _summed(name, kernel, op_type, work, rates, precision, None)


def _summed(
    name: str, kernel: str, op_type: str, work: Sequence[Work], rates: Rates, precision: str, number: int | None
) -> Layer:
    least = [rates.seconds(w.flops, w.nbytes, w.arithmetic, precision) for w in work]
    arithmetic_s, memory_s = (sum(pair[i] for pair in least) for i in (0, 1))
    return Layer(
        name=name,
        kernel=kernel,
        family=family_of(op_type),
        seconds=sum(w.seconds for w in work),
        flops=sum(w.flops for w in work),
        nbytes=sum(w.nbytes for w in work),
        limit_s=sum(map(max, least)) or None,
        bound="arithmetic" if arithmetic_s > memory_s else "memory",
        node=number,
    )
