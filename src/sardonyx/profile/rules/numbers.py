"""Numbers that cost more than they need to: float64 by accident, denormals, and precisions that are not used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.profile.facts import PRODUCTS, Facts
from sardonyx.profile.findings import OPPORTUNITY, PROBLEM, Finding, Fix
from sardonyx.session.config_keys import DOUBLES_KEY

DOUBLE_SHARE = 0.5
"""Of all operations, or of weights."""
DENORMAL_SHARE = 1e-3
"""Of the elements of a tensor."""
DENORMAL_FLOPS = 0.05
"""The share of all operations that read such tensors: below it, they are no problem."""
SAMPLED = 1 << 20
"""Elements of a tensor that are looked at."""
QUANTIZABLE_FLOPS, QUANTIZABLE_SHARE = 10**9, 0.6
"""Operations of a run, and their share of its time, above which int8 is worth a try."""


def doubles(facts: Facts) -> Iterator[Finding]:
    """A model that computes in float64."""
    wide = [k for k in facts.profile.kernels if k.arithmetic == "f64"]
    flops = sum(k.flops for k in wide)
    weights = sum(v.const.nbytes for v in facts.weights if v.const is not None and v.dtype is dtypes.f64)
    is_wide = flops > DOUBLE_SHARE * facts.profile.flops if facts.profile.flops else False
    if not is_wide:
        return
    inputs = [v.name for v in facts.graph.inputs if v.dtype is dtypes.f64]
    yield Finding(
        "float64",
        f"{100 * flops / facts.profile.flops:.0f} % of the operations are in float64",
        {"operations_in_float64": flops, "weight_bytes_in_float64": weights, "inputs_in_float64": len(inputs)},
        "It takes at least twice the time and memory of float32. numpy makes it by default, and exporters keep it.",
        Fix(
            f"export in float32 (x.astype(np.float32)), or let the session compute so: config key {DOUBLES_KEY} = 1",
            config={DOUBLES_KEY: "1"},
        ),
        tuple(dict.fromkeys(name for k in wide for name in k.nodes)),
        cost=facts.share(sum(k.seconds for k in wide)),
    )


def denormals(facts: Facts) -> Iterator[Finding]:
    """Weights or inputs with numbers so small that arithmetic on them is slow."""
    weights = {v.name: _denormal_share(v.numpy()) for v in facts.weights if _is_real(v)}
    inputs = {name: _denormal_share(x) for name, x in facts.feeds.items() if isinstance(x, np.ndarray)}
    many = {name: share for name, share in {**weights, **inputs}.items() if share > DENORMAL_SHARE}
    if not many:
        return
    worst = max(many, key=lambda name: many[name])
    readers = {n.name or n.outputs[0].name for n in facts.nodes for v in n.inputs if v is not None and v.name in many}
    kernels = [k for k in facts.profile.kernels if not readers.isdisjoint(k.nodes)]
    flops = sum(k.flops for k in kernels)
    is_much = flops >= DENORMAL_FLOPS * facts.profile.flops
    yield Finding(
        "denormals",
        f"{100 * many[worst]:.2g} % of {'input' if worst in inputs else 'weights'} {worst} are denormal",
        {"tensors": len(many), "largest_share": many[worst], "operations_on_them": flops},
        "Numbers below 1.2e-38 take a hundred cycles and more where the chip computes with them.",
        Fix("set them to zero before the export: w[abs(w) < np.finfo(w.dtype).tiny] = 0"),
        tuple(many),
        PROBLEM if is_much else OPPORTUNITY,
        facts.share(sum(k.seconds for k in kernels)),
    )


def _is_real(value: Any) -> bool:
    return value.const is not None and value.dtype in (dtypes.f32, dtypes.f64) and 0 < value.const.size <= 1 << 26


def _denormal_share(values: Any) -> float:
    if values.dtype not in (np.float32, np.float64) or not values.size:
        return 0.0
    flat = values.reshape(-1)
    sample = np.abs(flat[:: max(1, flat.size // SAMPLED)])
    return float(((sample > 0) & (sample < np.finfo(values.dtype).tiny)).mean())


def int8(facts: Facts) -> Iterator[Finding]:
    """A float model whose time is products with constants."""
    products = [k for k in facts.profile.kernels if k.op_type in PRODUCTS and k.weight_nbytes and k.arithmetic == "f32"]
    flops, share = sum(k.flops for k in products), facts.share(sum(k.seconds for k in products))
    has_integers = any(k.arithmetic == "i8" for k in facts.profile.kernels)
    if has_integers or flops < QUANTIZABLE_FLOPS or share < QUANTIZABLE_SHARE:
        return
    from sardonyx.providers.cpu.machine import isa

    chip = isa.current()
    if not (chip.amx or chip.byte_dot):
        return
    evidence = {"operations": flops, "share_of_a_run": share, "weight_bytes": sum(k.weight_nbytes for k in products)}
    yield Finding(
        "int8",
        f"{100 * share:.0f} % of a run are float products with constant weights",
        evidence,
        f"This chip ({chip.name}) multiplies bytes several times as fast as floats.",
        Fix("quantize the model and check its accuracy: sardonyx quantize, or sardonyx.quantization.quantize_static"),
        kind=OPPORTUNITY,
    )
    if chip.amx and facts.options.precision == "highest":
        yield Finding(
            "precision",
            "products are as exact as f32, which the model may not need",
            {**evidence, "precision": facts.options.precision},
            "With high, f32 operands are split into two bf16 terms instead of three; medium takes one.",
            Fix('options.precision = "high", if its error is small enough', {"precision": "high"}),
            kind=OPPORTUNITY,
        )
