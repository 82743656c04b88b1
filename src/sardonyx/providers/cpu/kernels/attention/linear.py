"""Linear attention: every column of the state is an independent recurrence; a work item is a vector of columns.

The state's columns stay in scratch memory, one vector for each element of a key, while all tokens are processed.
"""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import LinearAttention
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, f32, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Ref, Step

_SIZES = ("batch", "heads", "shared", "tokens", "width", "columns")
_AXES = {"q": 3, "k": 3, "v": 3, "o": 3, "n": 3, "p": 3, "f": 4, "r": 3}
"""The number of strides of each operand; a contiguous last axis has none."""


def _params(*, dtypes: tuple[tuple[str, DType], ...]) -> Params:
    """``dtypes`` are those of the present operands, by their letter."""
    memory = {f"{name}_": (dtype,) for name, dtype in dtypes}
    strides = {f"{name}{axis}": i64 for name, _ in dtypes for axis in range(_AXES[name])}
    return {**memory, **dict.fromkeys(_SIZES, i64), **strides, "scale": f32}


def steps(group: LinearAttention, analysis: Analysis) -> list[Step]:
    named = {
        "q": group.q, "k": group.k, "v": group.v, "o": group.out, "n": group.present, "p": group.past,
        "f": group.decay, "r": group.beta,
    }  # fmt: skip
    views = {name: view for name, view in named.items() if view is not None}
    batch, heads, tokens, width = group.q.shape
    key_heads, columns = group.k.shape[1], group.v.shape[3]
    args: dict[str, Ref | Known | float] = {
        "batch": batch, "heads": key_heads, "shared": expressible(dims.floordiv(heads, key_heads)), "tokens": tokens,
        "width": width, "columns": columns, "scale": group.scale,
    }  # fmt: skip
    for name, view in views.items():
        args[f"{name}_"] = Ref.of(view)
        args |= {f"{name}{axis}": view.strides[axis] for axis in range(_AXES[name])}
    spec = linear_attention(dtypes=tuple((name, view.dtype) for name, view in views.items()))
    scratch = expressible(dims.mul(width, analysis.isa.lanes * 4))
    flops = expressible(dims.mul(4, product((batch, heads, tokens, width, columns))))
    return [Step(spec, args, frozenset(("o_", "n_")), group.nodes, scratch, flops)]


@kernel(_params)
def linear_attention(
    k: Kernel, batch: Val, heads: Val, shared: Val, tokens: Val, width: Val, columns: Val, scale: Val, *,
    dtypes: tuple[tuple[str, DType], ...], **given: Buf | Val,
) -> None:  # fmt: skip
    lanes, present = k.lanes, dict(dtypes)
    blocks = (columns + (lanes - 1)) // lanes

    def at(name: str, *index: Val) -> Buf:
        memory, offset = given[f"{name}_"], k.const(0)
        assert isinstance(memory, Buf)
        for axis, i in enumerate(index):
            stride = given[f"{name}{axis}"]
            assert isinstance(stride, Val)
            offset = offset + i * stride
        return memory.at(offset)

    with k.share(batch * heads * blocks) as tile:
        b, h, first = tile // (heads * blocks), tile // blocks % heads, tile % blocks * lanes
        state = k.scratch(f32)
        for t in k.tiles(k.min(columns - first, lanes)):
            with k.loop(0, width) as d:
                state.store(d * lanes, at("p", b, h, d).at(first).load(t) if "p" in present else k.zeros(f32, lanes))
            with k.loop(0, tokens) as i:
                keys = at("k", b, h, i)
                retrieved = k.var(k.zeros(f32, lanes))
                if "f" in present or "r" in present:
                    with k.loop(0, width) as d:
                        row = state.load(d * lanes, lanes)
                        if "f" in present:
                            row = row * k.splat(at("f", b, h, i, d).load(), lanes)
                            state.store(d * lanes, row)
                        if "r" in present:
                            retrieved.set(k.fma(k.splat(keys.load(d), lanes), row, retrieved.get()))
                write = at("v", b, h, i).at(first).load(t)
                if "r" in present:
                    write = (write - retrieved.get()) * k.splat(at("r", b, h, i).load(), lanes)
                with k.loop(0, width) as d:
                    state.store(d * lanes, k.fma(k.splat(keys.load(d), lanes), write, state.load(d * lanes, lanes)))
                with k.loop(0, shared) as r:
                    _read(
                        k,
                        at("q", b, h * shared + r, i),
                        state,
                        width,
                        at("o", b, h * shared + r, i).at(first),
                        t,
                        scale,
                    )
            with k.loop(0, width) as d:
                at("n", b, h, d).at(first).store(t, state.load(d * lanes, lanes))


def _read(k: Kernel, query: Buf, state: Buf, width: Val, out: Buf, t: Tile, scale: Val) -> None:
    total = k.var(k.zeros(f32, k.lanes))
    with k.loop(0, width) as d:
        total.set(k.fma(k.splat(query.load(d), k.lanes), state.load(d * k.lanes, k.lanes), total.get()))
    out.store(t, total.get() * scale)
