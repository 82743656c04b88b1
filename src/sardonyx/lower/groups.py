"""Groups of work: what lowering gives to a provider that compiles.

A group reads and writes *views*: strided windows of storages. Its sizes are numbers or symbolic dimensions
(``ir.dims``), so one list of groups serves every shape of the inputs.

    Loop          scalar expressions over a box of indices, with reductions over its last axes
    Contraction   sums of products (MatMul, Gemm), with what follows element by element
    Convolution   sums of products over windows of an image, likewise
    Pool          the largest or the mean of each window of an image, likewise
    Attention     softmax(q k^T + mask) v
    Gather        rows picked by an index tensor
    Fill          numbers that follow from the shapes alone
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TypeAlias

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.scalar import Program
from sardonyx.ir.tensor import Tensor

_numbers = itertools.count()


@dataclass(eq=False)
class Storage:
    """Memory that some values live in. ``kind`` says whose it is."""

    kind: str
    """``temporary`` (planned into the arena), ``input``, ``output`` (the caller's), or ``constant``."""
    dtype: DType
    elements: Known
    value: Value | None = None
    """The graph's value behind an input, an output or a constant, and the first of a temporary."""
    tensor: Tensor | None = None
    """The content of a constant."""
    number: int = field(default_factory=lambda: next(_numbers))

    def __repr__(self) -> str:
        return f"{self.kind}:{self.value.name if self.value is not None else self.number}"


@dataclass(frozen=True)
class View:
    """Where elements lie: element (i, j, ...) is at ``offset + i * strides[0] + j * strides[1] + ...`` of its storage.

    An axis along which a value is repeated has stride 0.
    """

    storage: Storage
    shape: tuple[Known, ...]
    strides: tuple[Known, ...]
    offset: Known = 0

    @property
    def dtype(self) -> DType:
        return self.storage.dtype


@dataclass(frozen=True)
class Apply:
    """A pointwise program on operands or earlier results, by number."""

    program: Program
    args: tuple[int, ...]
    dtype: DType
    """Of the result, as the graph types it. Narrow floats are rounded where they are stored, not in between."""


@dataclass(frozen=True)
class Reduce:
    """One number for each row: ``sum``, ``max``, ``min``, ``prod``, ``argmax`` or ``argmin`` over the reduced axes.

    Sums of floats narrower than 64 bits are kept in f32, of integers in their own type. ``argmax`` and ``argmin`` give
    the index along the one reduced axis; ``is_last`` picks the last of equals. NaN is taken as ONNX's numpy meaning
    does. What is reduced may itself be one number for each row: it counts as often as the row has elements.
    """

    kind: str
    arg: int
    dtype: DType
    is_last: bool = False


@dataclass(frozen=True)
class Count:
    """How many elements the reduced axes have, as a number of type ``dtype``."""

    dtype: DType


@dataclass(frozen=True)
class Expression:
    """Scalar code: values 0 .. len(operands)-1 are the operands; each step adds one; ``results`` are what is stored."""

    operands: tuple[DType, ...]
    steps: tuple[Apply | Reduce | Count, ...]
    results: tuple[int, ...]

    def dtype_of(self, number: int) -> DType:
        n = len(self.operands)
        return self.operands[number] if number < n else self.steps[number - n].dtype


@dataclass(frozen=True)
class Loop:
    """An expression over every index of a box. The last ``reduced`` axes are what its reductions run over.

    Inputs have one axis for each extent. An output has either all axes or, when its result is one number for each row,
    only those that are not reduced. One number for each row are reductions, counts, operands of stride 0 along all
    reduced axes, and what is applied to these alone. An expression without steps is a copy. A box has at least one
    axis, and at least one reduced axis where something is reduced. Outputs do not overlap.
    """

    nodes: tuple[Node, ...]
    extents: tuple[Known, ...]
    reduced: int
    inputs: tuple[View, ...]
    expression: Expression
    outputs: tuple[View, ...]


@dataclass(frozen=True)
class Contraction:
    """out[..., m, n] = epilogue(sum over k of a[..., m, k] * b[..., k, n], further operands).

    Operand 0 of the epilogue is the sum, in f32 (or f64, or i32 for 8-bit integers). ``extra`` are its further
    operands; they, and the outputs, have the axes (*batch, m, n). An epilogue without steps stores the sum.
    """

    nodes: tuple[Node, ...]
    batch: tuple[Known, ...]
    m: Known
    n: Known
    k: Known
    a: View
    b: View
    epilogue: Expression
    extra: tuple[View, ...]
    outputs: tuple[View, ...]

    @property
    def box(self) -> tuple[Known, ...]:
        """The axes of the epilogue."""
        return (*self.batch, self.m, self.n)


@dataclass(frozen=True)
class Window:
    """What an output sees of an image: at p, along each spatial axis, elements p * stride + tap * dilation - pad.

    Elements that the image does not have are padding. How much of it lies behind the image follows from the sizes. A
    pad below 0 leaves out elements of the image.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[Known, ...]


@dataclass(frozen=True)
class Convolution:
    """out[b, c, p..] = epilogue(sum over i and taps t.. of x[b, g * I + i, p.. at t..] * w[c, i, t..], further
    operands).

    ``x``: (batch, channels, *spatial); ``w``: (filters, I, *kernel), where I is channels / groups, and filter c is of
    group g = c / (filters / groups). Padding is 0. Operand 0 of the epilogue is the sum, in f32 (or f64); ``extra`` and
    ``outputs`` have the axes (batch, filters, *spatial of the result).
    """

    nodes: tuple[Node, ...]
    x: View
    w: View
    window: Window
    groups: int
    epilogue: Expression
    extra: tuple[View, ...]
    outputs: tuple[View, ...]

    @property
    def box(self) -> tuple[Known, ...]:
        return self.outputs[0].shape


@dataclass(frozen=True)
class Pool:
    """out[b, c, p..] = epilogue(the largest, or the mean, of x[b, c, p.. at t..] over the taps t.., further operands).

    ``ends`` are the pads behind the image if means count padding; otherwise it is None, and they count what is in the
    image. What lies behind these pads never counts. A window without a single element has -Inf (the lowest integer) as
    its largest and NaN as its mean. Operand 0 of the epilogue is the result, a narrow float widened to f32; the axes
    are those of ``Convolution``.
    """

    nodes: tuple[Node, ...]
    kind: str
    """``max`` or ``mean``."""
    x: View
    window: Window
    ends: tuple[Known, ...] | None
    epilogue: Expression
    extra: tuple[View, ...]
    outputs: tuple[View, ...]

    @property
    def box(self) -> tuple[Known, ...]:
        return self.outputs[0].shape


@dataclass(frozen=True)
class Attention:
    """softmax(scale * q k^T + mask) v for every batch and head, without the score matrix in memory.

    ``q``, ``out``: (batch, heads, rows, width); ``k``, ``v``: (batch, key heads, keys, width), each key head serving
    ``heads / key heads`` neighbouring heads. ``mask`` is additive f32 or bool (false hides), of axes (batch, heads,
    rows, keys). With ``past``, keys are past + new: ``k`` and ``v`` are the new ones, ``past`` and ``present`` views of
    the same axes, and past and new are copied into present, which is what is read. ``causal`` hides key j from row i
    where j > i + (number of past keys). With ``softcap`` c, scores are c * tanh(score / c) before the mask. A row that
    sees no key gives zeros.
    """

    nodes: tuple[Node, ...]
    q: View
    k: View
    v: View
    mask: View | None
    out: View
    scale: float
    causal: bool = False
    softcap: float = 0.0
    past: tuple[View, View] | None = None
    present: tuple[View, View] | None = None


@dataclass(frozen=True)
class Gather:
    """out[o.., i.., n..] = data[o.., indices[i..], n..]; ``axis`` is that of data. Indices are checked."""

    nodes: tuple[Node, ...]
    data: View
    indices: View
    axis: int
    out: View


@dataclass(frozen=True)
class Fill:
    """Elements that follow from the shapes: ``values`` in order, or, for a range, start + i * step.

    They are whole numbers, whatever the type of the elements.
    """

    nodes: tuple[Node, ...]
    out: View
    values: tuple[Known, ...] = ()
    start: Known | None = None
    step: Known | None = None


Group: TypeAlias = "Loop | Contraction | Convolution | Pool | Attention | Gather | Fill"


def reads(group: Group) -> tuple[View, ...]:
    """What a group reads."""
    if isinstance(group, Loop):
        return group.inputs
    if isinstance(group, Contraction):
        return (group.a, group.b, *group.extra)
    if isinstance(group, Convolution):
        return (group.x, group.w, *group.extra)
    if isinstance(group, Pool):
        return (group.x, *group.extra)
    if isinstance(group, Attention):
        mask = () if group.mask is None else (group.mask,)
        return (group.q, group.k, group.v, *mask, *(group.past or ()))
    return (group.data, group.indices) if isinstance(group, Gather) else ()


def writes(group: Group) -> tuple[View, ...]:
    """What a group writes."""
    if isinstance(group, (Loop, Contraction, Convolution, Pool)):
        return group.outputs
    if isinstance(group, Attention):
        return (group.out, *(group.present or ()))
    return (group.out,)
