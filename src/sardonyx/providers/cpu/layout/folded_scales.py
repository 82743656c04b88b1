"""Scales of quantized sums become one multiply-add per element.

What follows a product of integers, or a sum of dequantized bytes, is linear up to the next QuantizeLinear: corrections
for zero points, a bias, the scale of the product, and the division by the scale of the result. Where these are
constants, they become one factor for each integer that varies and one offset, computed here in f64 and rounded once. An
offset of whole units of a product, as zero points and a quantizer's bias make it, is added to the integers instead:
scaled sums are often exactly halves, and the rounding of an offset would decide where they go. A value that is
quantized and dequantized in between is rounded and clamped in registers.

Results differ from those of the separate steps only where reals are within rounding errors of a half; where scales are
powers of two they are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir.scalar import Emitter, Expr, Program, Step, trace
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Apply, Contraction, Convolution, Expression, Group, Loop, Storage, View
from sardonyx.providers.cpu.kernels.math.quantization import limits
from sardonyx.providers.cpu.language.values import f32, i8, i32, u8
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.records import Record, replace

Array = np.ndarray[Any, Any]
BYTES = (i8, u8)
WHOLE = 1e-9
"""How far a number of units may be from an integer, relatively: all are computed in f64."""
EXACT = 2.0**24
"""f32 represents all integers below this."""
LARGEST = 2.0**30
"""Bound of what is rounded to i32."""
MOST_ELEMENTS = 1 << 16
"""Of a constant that is folded."""
LARGEST_OF = {i8: 2.0**8, u8: 2.0**8, i32: 2.0**31, f32: EXACT}
"""Bounds of the integers that sums are made of."""


class Rounded(Record):
    """round(linear), clamped: a quantized value minus its zero point."""

    linear: Linear
    zero: int
    dtype: DType
    zero_operand: int | None
    """The operand that holds the zero point; None if it is 0."""


Leaf: TypeAlias = "int | Rounded"
"""An operand of the expression, or a value that was rounded."""


class Linear:
    """A sum of leaves times constants, and an offset; constants broadcast to the group's box."""

    __slots__ = ("offset", "terms")

    def __init__(self, terms: dict[Leaf, Array], offset: Array) -> None:
        self.terms, self.offset = terms, offset

    def plus(self, other: Linear, sign: float = 1) -> Linear:
        terms = dict(self.terms)
        for leaf, factor in other.terms.items():
            terms[leaf] = terms.get(leaf, 0) + sign * factor
        return Linear(terms, self.offset + sign * other.offset)

    def times(self, factor: Array) -> Linear:
        return Linear({leaf: own * factor for leaf, own in self.terms.items()}, self.offset * factor)


class _Folded(Record):
    """A quantized result, to be computed in one step."""

    program: Program
    args: tuple[int, ...]


def with_folded_scales(groups: Sequence[Group], analysis: Analysis) -> list[Group]:
    """The groups, with one multiply-add in the place of several scales; chips without that instruction keep them."""
    return list(groups) if analysis.isa.is_baseline else [_rewritten(group) for group in groups]


def _rewritten(group: Group) -> Group:
    if isinstance(group, Loop):
        made = _Folding(group.expression, group.inputs, group.extents).rewritten()
        return group if made is None else replace(group, expression=made[0], inputs=made[1])
    if isinstance(group, (Contraction, Convolution)):
        made = _Folding(group.epilogue, group.extra, group.box).rewritten()
        return group if made is None else replace(group, epilogue=made[0], extra=made[1])
    return group


class _Folding:
    """The expression in the making."""

    def __init__(self, e: Expression, views: Sequence[View], box: Sequence[Any]) -> None:
        self.e, self.views, self.box = e, tuple(views), tuple(box)
        self.first = len(e.operands) - len(views)
        """Operands in front of the views: the sums."""
        nothing: list[Array | None] = [None] * self.first
        self.constants = nothing + [_constant(view) for view in views]
        self.known: dict[int, Linear | Rounded] = {}
        self.more: list[View] = []
        self.numbers: dict[bytes, int] = {}

    def rewritten(self) -> tuple[Expression, tuple[View, ...]] | None:
        """The expression, and the views that it reads; None if there is nothing to fold."""
        e, n = self.e, len(self.e.operands)
        if not any(step.dtype in BYTES for step in e.steps) or not all(isinstance(step, Apply) for step in e.steps):
            return None
        for number in range(n):
            constant = self.constants[number]
            if constant is not None:
                self.known[number] = Linear({}, constant.astype(np.float64))
            elif self._is_integer(number):
                self.known[number] = Linear({number: np.ones(())}, np.zeros(()))
        folded: dict[int, _Folded] = {}
        for i, step in enumerate(e.steps):
            assert isinstance(step, Apply)
            value = self._after(step)
            if value is not None:
                self.known[n + i] = value
            if isinstance(value, Rounded) and (made := self._folded(value)) is not None:
                folded[n + i] = made
        return self._finished(folded) if folded else None

    def _is_integer(self, number: int) -> bool:
        """Whether an operand has integers: bytes, or sums, also where f32 represents them."""
        dtype = self.e.operands[number]
        return dtype in (*BYTES, i32) or (number < self.first and dtype is f32 and self._is_widened_first())

    def _is_widened_first(self) -> bool:
        """Whether sums in f32 are integers: they are converted to i32 before anything else."""
        readers = [step for step in self.e.steps if isinstance(step, Apply) and 0 in step.args]
        return bool(readers) and all(
            [s.op for s in step.program.steps] == ["arg", "cast"] and step.dtype is i32 for step in readers
        )

    # -- what is known of values

    def _after(self, step: Apply) -> Linear | Rounded | None:
        values: list[Linear | Rounded | None] = []
        types: list[DType | None] = []
        for s in step.program.steps:
            types.append(self.e.dtype_of(step.args[s.type]) if isinstance(s.type, int) else s.type)
            if s.op == "arg":
                values.append(self.known.get(step.args[s.value]))
            elif s.op in ("int", "real"):
                values.append(Linear({}, np.asarray(float(s.value))))
            elif s.op == "quantize":
                values.append(self._quantized(s, [values[a] for a in s.args], step))
            elif s.op == "dequantize":
                values.append(_dequantized(*(values[a] for a in s.args)))
            else:
                args = [values[a] for a in s.args]
                values.append(_result(s.op, types[-1], args, types[s.args[0]]))
        return values[-1]

    def _quantized(self, s: Step, args: list[Linear | Rounded | None], step: Apply) -> Rounded | None:
        x, scale, zero = args
        if not isinstance(x, Linear) or not x.terms or not isinstance(s.type, DType) or s.type not in BYTES:
            return None
        if not isinstance(scale, Linear) or scale.terms or not isinstance(zero, Linear) or zero.terms:
            return None
        if zero.offset.size != 1 or not np.all(scale.offset > 0) or not np.isfinite(scale.offset).all():
            return None
        operand = None
        point = int(zero.offset.reshape(()))
        if point:
            given = step.program.steps[s.args[2]]
            if given.op != "arg":
                return None
            operand = step.args[given.value]
        return Rounded(x.times(1 / scale.offset), point, s.type, operand)

    # -- programs

    def _folded(self, value: Rounded) -> _Folded | None:
        """One step for a quantized value; None where constants are no vectors, or numbers too large."""
        args: list[int] = []
        plan = self._plan(value, args)
        if plan is None:
            return None
        return _Folded(trace(_written, (True,) * len(args), plan=plan), tuple(args))

    def _plan(self, value: Rounded, args: list[int]) -> Any:
        """What ``_written`` emits: nested tuples of the places of arguments."""
        linear, terms = value.linear, list[Any]()
        bound, units = np.abs(linear.offset).max(initial=0.0), self._units(linear)
        for leaf, factor in linear.terms.items():
            size = 2.0**9 if isinstance(leaf, Rounded) else LARGEST_OF[self.e.operands[leaf]]
            if not np.isfinite(factor).all() or not factor.any():
                return None
            if leaf == 0 and self.first and not np.all(np.abs(linear.offset) < EXACT * np.abs(factor)):
                return None
            bound += size * np.abs(factor).max()
            inner = self._plan(leaf, args) if isinstance(leaf, Rounded) else self._place(leaf, args)
            more = None if units is None else self._number(units, args, self.e.operands[0])
            place = self._number(factor, args)
            if inner is None or place is None or (more is None) != (units is None):
                return None
            terms.append((inner, more, place))
        if not bound < LARGEST:
            return None
        has_offset = units is None and bool(linear.offset.any())
        offset = self._number(linear.offset, args) if has_offset else None
        if has_offset and offset is None:
            return None
        zero = None if value.zero_operand is None else self._place(value.zero_operand, args)
        return tuple(terms), offset, zero, value.dtype

    @staticmethod
    def _place(number: int, args: list[int]) -> int:
        """The place of a value among the arguments."""
        if number not in args:
            args.append(number)
        return args.index(number)

    def _units(self, linear: Linear) -> Array | None:
        """The integers that are added to the sums, where the offset is nothing else."""
        if not self.first or set(linear.terms) != {0} or not linear.offset.any() or not linear.terms[0].all():
            return None
        units = linear.offset / linear.terms[0]
        whole = np.rint(units)
        return whole if np.all(np.abs(units - whole) <= WHOLE * np.maximum(np.abs(whole), 1)) else None

    def _number(self, content: Array, args: list[int], dtype: DType = f32) -> int | None:
        """The place of a constant among the arguments; None if it is no number or vector."""
        axes = [i for i, size in enumerate(content.shape) if size > 1]
        if len(axes) > 1:
            return None
        numbers = np.ascontiguousarray(content, dtype.numpy)
        key = repr((axes, content.ndim, dtype.name)).encode() + numbers.tobytes()
        if key not in self.numbers:
            storage = Storage("constant", dtype, numbers.size, tensor=Tensor.of(numbers.reshape(-1)))
            axis = len(self.box) - content.ndim + axes[0] if axes else None
            strides = tuple(int(i == axis) for i in range(len(self.box)))
            self.numbers[key] = len(self.e.operands) + len(self.more)
            self.more.append(View(storage, self.box, strides))
        return self._place(-1 - (self.numbers[key] - len(self.e.operands)), args)

    # -- the result

    def _finished(self, folded: dict[int, _Folded]) -> tuple[Expression, tuple[View, ...]]:
        """Renumber: operands that are still read, new ones (negative numbers), and steps that are still needed."""
        e, n = self.e, len(self.e.operands)
        needed, todo = set[int](), list(e.results)
        while todo:
            v = todo.pop()
            if v in needed:
                continue
            needed.add(v)
            if v >= n:
                step = e.steps[v - n]
                assert isinstance(step, Apply)
                todo += folded[v].args if v in folded else step.args
        kept = [
            *range(self.first),
            *(i for i in range(self.first, n) if i in needed),
            *sorted(v for v in needed if v < 0),
        ]
        steps = sorted(v for v in needed if v >= n)
        place = {v: i for i, v in enumerate([*kept, *steps])}
        made = list[Apply]()
        for v in steps:
            step = e.steps[v - n]
            assert isinstance(step, Apply)
            own = Apply(folded[v].program, folded[v].args, step.dtype) if v in folded else step
            made.append(replace(own, args=tuple(place[a] for a in own.args)))
        views = tuple(self.more[-1 - v] if v < 0 else self.views[v - self.first] for v in kept[self.first :])
        types = tuple(self.more[-1 - v].dtype if v < 0 else e.operands[v] for v in kept)
        return Expression(types, tuple(made), tuple(place[r] for r in e.results)), views


def _dequantized(x: Linear | Rounded | None, scale: Linear | Rounded | None, zero: Any) -> Linear | None:
    if not isinstance(scale, Linear) or not isinstance(zero, Linear) or scale.terms or zero.terms or x is None:
        return None
    if isinstance(x, Rounded):
        x = Linear({x: np.ones(())}, np.asarray(float(x.zero)))
    return x.plus(zero, -1).times(scale.offset)


def _result(op: str, dtype: DType | None, args: list[Linear | Rounded | None], source: DType | None) -> Linear | None:
    """An operation on linear values; None where the result is not linear, or not known to be exact."""
    values = [v for v in args if isinstance(v, Linear)]
    if len(values) < len(args) or dtype not in (f32, i32):
        return None
    x, y = values[0], values[-1]
    if op in ("copy", "cast"):
        are_integers = source is not f32 or set(x.terms) == {0}  # sums that are converted back to what they are
        return x if op == "copy" or dtype is f32 or are_integers else None
    if op in ("add", "sub"):
        return x.plus(y, 1 if op == "add" else -1)
    if op == "neg":
        return x.times(np.asarray(-1.0))
    if op == "mul" and not (x.terms and y.terms):
        return x.times(y.offset) if x.terms else y.times(x.offset)
    if op == "div" and dtype is f32 and not y.terms:
        with np.errstate(all="ignore"):
            return x.times(1 / y.offset)
    return None


def _written(e: Emitter, *args: Expr, plan: Any) -> Expr:
    """A quantized value from leaves, factors and offsets."""
    zero, dtype = plan[2], plan[3]
    return e.saturate(_linear(e, args, plan), None if zero is None else args[zero], dtype)


def _linear(e: Emitter, args: tuple[Expr, ...], plan: Any) -> Expr:
    terms, offset, _, _ = plan
    total: Expr | None = None if offset is None else args[offset]
    for leaf, units, factor in terms:
        if isinstance(leaf, int):
            x = e.cast(args[leaf] if units is None else args[leaf] + args[units], f32)
        else:
            x = _rounded(e, args, leaf)
        total = x * args[factor] if total is None else e.fma(x, args[factor], total)
    assert total is not None
    return total


def _rounded(e: Emitter, args: tuple[Expr, ...], plan: Any) -> Expr:
    """What is quantized, minus the zero point, in f32."""
    zero, dtype = plan[2], plan[3]
    low, high = limits(dtype)
    x = _linear(e, args, plan)
    if zero is None:
        return e.round(e.clamp(x, low, high))
    point = e.cast(args[zero], f32)
    return e.round(e.minimum(e.maximum(x, low - point), high - point))


def _constant(view: View) -> Array | None:
    """The content of a view of a constant, with one element along axes that it repeats."""
    tensor, offset = view.storage.tensor, view.offset
    if tensor is None or view.storage.kind != "constant" or view.storage.stream is not None:
        return None
    if not isinstance(offset, int) or tensor.size > MOST_ELEMENTS:
        return None
    axes = [
        (1, 0) if stride == 0 or size == 1 else (size, stride)
        for size, stride in zip(view.shape, view.strides, strict=True)
    ]
    if not all(isinstance(size, int) and isinstance(stride, int) for size, stride in axes):
        return None
    content = np.asarray(tensor.peek()).reshape(-1)
    sizes, steps = [int(size) for size, _ in axes], [int(stride) * content.itemsize for _, stride in axes]
    return np.array(np.lib.stride_tricks.as_strided(content[offset:], sizes, steps))
