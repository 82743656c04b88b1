"""Steps of user-written kernels: one step per group, with the group's own arguments."""

from __future__ import annotations

from sardonyx.errors import InvalidGraph
from sardonyx.ir.dims import Expr, Known
from sardonyx.lower.groups import Custom, View
from sardonyx.providers.cpu.language.dsl import Spec
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step


def steps(group: Custom, analysis: Analysis) -> list[Step]:
    spec, where = group.kernel, group.nodes[0].label
    if not isinstance(spec, Spec):
        raise InvalidGraph("a custom kernel must be written in the kernel language", where=where, got=repr(spec))
    args: dict[str, Ref | Known | float] = {}
    for name, (kind, dtype) in spec.params.items():
        given = group.args.get(name)
        if kind == "memory" and isinstance(given, View) and given.dtype.bits == dtype.bits:
            args[name] = Ref.of(given)
        elif kind == "number" and isinstance(given, (int, float, Expr)):
            args[name] = given
        else:
            raise InvalidGraph(f"kernel {spec.name} wants {kind} {name!r} of {dtype}", where=where, got=repr(given))
    if unknown := group.args.keys() - args.keys():
        raise InvalidGraph(f"kernel {spec.name} has no such parameters", where=where, got=sorted(unknown))
    writes = frozenset(name for name, given in group.args.items() if given in group.outputs)
    if len(writes) < len(group.outputs):
        raise InvalidGraph(f"kernel {spec.name} does not write every output", where=where)
    return [Step(spec, args, writes, group.nodes)]
