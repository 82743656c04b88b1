"""The kernel variants of each kind of group, in order of preference: a module for each family of kernels.

A module is imported when the first group of its kinds is compiled, and with it the family's kernels. ``select`` chooses
among the variants.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module

from sardonyx.lower.groups import (
    Attention,
    BitCast,
    CentredConvolution,
    Contraction,
    Convolution,
    CountedGather,
    CumulativeSum,
    Custom,
    Fill,
    Forest,
    Gather,
    GatherElements,
    GridSample,
    Group,
    IntegerConvolution,
    LinearAttention,
    Loop,
    NonMaxSuppression,
    NonZero,
    Pool,
    RandomStream,
    Recurrence,
    Resample,
    RoiAlign,
    Scatter,
    TopK,
    Unique,
)
from sardonyx.providers.cpu.program.variants import Variant

FAMILIES: dict[str, tuple[type[Group], ...]] = {
    "attention": (Attention, LinearAttention),
    "common": (Custom,),
    "conv": (Convolution,),
    "gemm": (Contraction,),
    "image": (GridSample, Pool, Resample, RoiAlign),
    "index": (
        CountedGather, CumulativeSum, Gather, GatherElements, NonMaxSuppression, NonZero, Scatter, TopK, Unique,
    ),
    "loops": (BitCast, Fill, Loop, RandomStream),
    "quantized": (CentredConvolution, IntegerConvolution),
    "recurrent": (Recurrence,),
    "trees": (Forest,),
}  # fmt: skip
"""The kinds of groups in the table of each module."""


class VariantTable(MutableMapping[type[Group], Sequence[Variant]]):
    """The variants of each kind of group."""

    def __init__(self) -> None:
        self._homes = {kind: family for family, kinds in FAMILIES.items() for kind in kinds}
        self._known: dict[type[Group], Sequence[Variant]] = {}

    def __getitem__(self, kind: type[Group]) -> Sequence[Variant]:
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = table_of(self._homes[kind])[kind]
        return found

    def __setitem__(self, kind: type[Group], variants: Sequence[Variant]) -> None:
        self._known[kind] = variants

    def __delitem__(self, kind: type[Group]) -> None:
        del self._known[kind]

    def __iter__(self) -> Iterator[type[Group]]:
        return iter(self._homes | self._known)

    def __len__(self) -> int:
        return len(self._homes | self._known)


def table_of(family: str) -> dict[type[Group], tuple[Variant, ...]]:
    """The variants that a module lists."""
    found: dict[type[Group], tuple[Variant, ...]] = import_module(f"{__name__}.{family}").VARIANTS
    return found
