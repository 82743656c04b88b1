"""Gathering, scattering, sorting, and results whose sizes depend on data."""

from sardonyx.lower.groups import (
    CountedGather,
    CumulativeSum,
    Gather,
    GatherElements,
    Group,
    NonMaxSuppression,
    NonZero,
    Scatter,
    TopK,
    Unique,
)
from sardonyx.providers.cpu.kernels.index import (
    cumulative_sum,
    gather,
    nms,
    nonzero,
    scatter,
    top_k,
    top_k_packed,
    unique,
)
from sardonyx.providers.cpu.program.variants import Variant

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {
    CountedGather: (Variant("index.counted_gather", nonzero.counted_gather_steps),),
    CumulativeSum: (Variant("index.cumulative_sum", cumulative_sum.steps),),
    Gather: (Variant("index.gather", gather.steps),),
    GatherElements: (Variant("index.gather_elements", gather.gather_elements_steps),),
    NonMaxSuppression: (Variant("index.nms", nms.steps),),
    NonZero: (Variant("index.nonzero", nonzero.steps),),
    Scatter: (Variant("index.scatter", scatter.steps),),
    TopK: (
        Variant("index.top_k_packed", top_k_packed.steps, top_k_packed.supports),
        Variant("index.top_k", top_k.steps),
    ),
    Unique: (Variant("index.unique", unique.steps),),
}
