"""The operands of an attention as both of its kernels take them."""

from __future__ import annotations

from typing import Any

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Attention, Loop, Storage, View
from sardonyx.providers.cpu.kernels.attention.config import AttentionArgs, HeadStrides, MaskArgs
from sardonyx.providers.cpu.kernels.loops import loop
from sardonyx.providers.cpu.kernels.split.bf16 import PackedOperand
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Spec
from sardonyx.providers.cpu.language.values import f32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record, replace


class Operands(Record):
    """An attention whose q, k, v and result have a contiguous last axis, as its kernels require."""

    group: Attention
    """The group with contiguous views; copies replace the others."""
    before: list[Step]
    """The steps that copy operands to make them contiguous."""
    packed: PackedOperand | None
    """The packed layout of the result, if a matrix product reads it so."""
    has_transposed_keys: bool = False
    """The keys are contiguous along the sequence; their stride along it stands for that along their width."""

    @staticmethod
    def of(group: Attention, analysis: Analysis, *, may_transpose_keys: bool = False) -> Operands:
        before: list[Step] = []
        q, values = (_contiguous(v, group, analysis, before) for v in (group.q, group.v))
        is_transposed = may_transpose_keys and group.k.strides[3] != 1 and group.k.strides[2] == 1
        keys = group.k if is_transposed else _contiguous(group.k, group, analysis, before)
        assert group.out.strides[3] == 1
        packed = analysis.packed_operands.get(group.out.storage)
        return Operands(replace(group, q=q, k=keys, v=values), before, packed, is_transposed)

    @property
    def views(self) -> tuple[View, ...]:
        return self.group.q, self.group.k, self.group.v, self.group.out

    @property
    def has_unpacked(self) -> bool:
        return self.packed is None or self.packed.has_unpacked

    @property
    def statics(self) -> dict[str, Any]:
        """The compile-time parameters that all attention kernels have."""
        mask_dtype = f32 if self.group.mask is None else self.group.mask.dtype
        return dict(
            dtypes=tuple(v.dtype for v in self.views), causal=self.group.causal, softcap=self.group.softcap,
            mask_dtype=mask_dtype,
        )  # fmt: skip

    def step(self, spec: Spec, scratch_nbytes: Known, variant: str) -> Step:
        group = self.group
        batch, heads, rows, width = group.q.shape
        pairs, value_width = dims.product((batch, heads, rows, group.k.shape[2])), group.v.shape[3]
        return Step(
            spec,
            flat(args=self._args()),
            frozenset((*(("out",) if self.has_unpacked else ()), *(("tiles", "flags") if self.packed else ()))),
            group.nodes,
            scratch_nbytes=scratch_nbytes,
            flops=expressible(dims.mul(pairs, dims.mul(2, dims.add(width, value_width)))),
            nbytes=expressible(dims.total(dims.mul(dims.product(v.shape), v.dtype.bits // 8) for v in self.views)),
            variant=variant,
        )

    def _args(self) -> AttentionArgs[Ref, Known | float]:
        group, mask = self.group, self.group.mask
        batch, heads, rows, width = group.q.shape
        q, k, v, out = (Ref.of(view) for view in self.views)
        strides = [list(view.strides[:3]) for view in self.views]
        if self.has_transposed_keys:
            strides[1][2] = group.k.strides[3]
        q_strides, k_strides, v_strides, out_strides = (HeadStrides[Ref, "Known | float"](*s) for s in strides)
        shared = expressible(dims.floordiv(heads, group.k.shape[1]))
        tiled = None if self.packed is None else self.packed.tiled
        return AttentionArgs(
            q, k, v, batch, heads, shared, rows, group.k.shape[2], width, group.v.shape[3], group.past,
            q_strides, k_strides, v_strides, out_strides,
            out if self.has_unpacked else None,
            None if tiled is None else Ref(tiled.tiles),
            None if tiled is None or tiled.flags is None else Ref(tiled.flags),
            None if mask is None else MaskArgs(Ref.of(mask), *mask.strides),
            group.scale,
        )  # fmt: skip


def _contiguous(view: View, group: Attention, analysis: Analysis, before: list[Step]) -> View:
    """The view, or a copy of it whose last axis is contiguous."""
    if view.strides[3] == 1:
        return view
    strides: list[Known] = [1]
    for d in reversed(view.shape[1:]):
        strides.insert(0, expressible(dims.mul(strides[0], d)))
    copy = View(Storage("temporary", view.dtype, expressible(dims.product(view.shape))), view.shape, tuple(strides))
    before += loop.steps(Loop.copying(group.nodes, view, copy), analysis)
    return copy
