"""Pooling over windows, one channel at a time (``channelwise``)."""

from __future__ import annotations

from sardonyx.errors import NotImplemented
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, Pool
from sardonyx.providers.cpu.kernels import channelwise
from sardonyx.providers.cpu.kernels.frame import AXES
from sardonyx.providers.cpu.steps import Ref, Step, Target


def steps(group: Pool, target: Target) -> list[Step]:
    if not all(isinstance(step, Apply) for step in group.epilogue.steps):
        raise NotImplemented("a reduction follows a pooling", where=", ".join(node.op_type for node in group.nodes))
    counted: dict[str, Ref | Known | float] = {}
    if group.kind == channelwise.MEAN:
        lead = (0,) * (3 - len(group.window.pads))
        before, after = ((0,) * 3,) * 2 if group.ends is None else (lead + group.window.pads, lead + group.ends)
        counted |= {f"before_{a}": d for a, d in zip(AXES, before, strict=True)}
        counted |= {f"after_{a}": d for a, d in zip(AXES, after, strict=True)}
    return [channelwise.step(group, target.isa, group.kind, counted)]
