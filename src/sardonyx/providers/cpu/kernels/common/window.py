"""Images and windows as convolution and pooling kernels take them: always with three spatial axes (z, y, x).

A missing axis has one element. For pointwise windows of stride 1 all pixels are collapsed into one row where strides
allow it.
"""

from __future__ import annotations

from dataclasses import field
from math import gcd
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Convolution, Pool, View, Window
from sardonyx.providers.cpu.kernels.common.epilogue import Access, Epilogue, EpilogueArgs, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import Matrix
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Val, bf16, f16, f32, f64, i64, register_dtype
from sardonyx.providers.cpu.program.steps import Ref
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record

MIN_NHWC_LANES = 8
"""Vector lanes from which on images are laid out as NHWC (``layout.nhwc``)."""


def refusal(group: Convolution) -> Refusal | None:
    """Why no kernel computes a convolution: its types, or a reduction in its epilogue."""
    x, w = group.x.dtype, group.w.dtype
    if x not in (f32, f64, f16, bf16) or register_dtype(x) is not register_dtype(w):
        return Refusal(f"convolutions of {x} with weights of {w} are not compiled")
    if not all(isinstance(step, Apply) for step in group.epilogue.steps):
        return Refusal("the epilogue of a convolution contains a reduction")
    return None


class Taps(Record):
    """The compile-time part of a window: kernel size, strides and dilations over (z, y, x)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.kernel[0] * self.kernel[1] * self.kernel[2]

    def phase_offsets(self, axis: int) -> list[tuple[int, int]]:
        """For each tap the number of its stride phase and its offset within that phase, in outputs.

        A phase of the image is the elements whose indices are equal modulo the stride. Within a phase, neighbouring
        outputs read neighbouring elements.
        """
        s, d, period = self.strides[axis], self.dilations[axis], self.period(axis)
        return [(t % period, t * d // s) for t in range(self.kernel[axis])]

    def phases(self, axis: int) -> list[int]:
        """The stride phases that taps read, in the order of the taps."""
        s, d = self.strides[axis], self.dilations[axis]
        return [t * d % s for t in range(min(self.kernel[axis], self.period(axis)))]

    def reach(self, axis: int) -> int:
        """The offset of the last tap within its phase, in outputs."""
        return (self.kernel[axis] - 1) * self.dilations[axis] // self.strides[axis]

    @property
    def step(self) -> int:
        """The stride along x that a kernel is specialized for: 1, 2, or 0 for any other."""
        return self.strides[2] if self.strides[2] <= 2 else 0

    def period(self, axis: int) -> int:
        """The number of taps after which phases repeat."""
        return self.strides[axis] // gcd(self.strides[axis], self.dilations[axis])

    @property
    def operand(self) -> TapsArgs[Ref, Known]:
        return TapsArgs(PerAxis(*self.kernel), PerAxis(*self.dilations), PerAxis(*self.strides))

    @property
    def phase_planes(self) -> int:
        """Phase planes that the outputs of one plane read of a channel."""
        return self.kernel[0] * len(self.phases(1)) * len(self.phases(2))


def is_nhwc(view: View) -> bool:
    """Whether the channels of a pixel are adjacent in memory."""
    return view.strides[1] == 1 or view.shape[1] == 1


class WindowGeometry(Record):
    """A group's views over (batch, channels, z, y, x), and its window over three axes."""

    x: View
    window: Window
    extra: tuple[View, ...]
    outputs: tuple[View, ...]

    @staticmethod
    def of(group: Convolution | Pool, *, collapse: bool = True) -> WindowGeometry:
        """``collapse``: pixels become one row where the window is pointwise and strides allow it."""
        window, seen = group.window, [group.x, *group.extra, *group.outputs]
        if collapse and _is_pointwise(window) and group.x.shape[2:] == group.box[2:]:
            for axis in reversed(range(2, len(group.x.shape) - 1)):
                if all(views.is_mergeable(v, axis) for v in seen):
                    seen = [views.merged(v, axis) for v in seen]
                    ones = (1,) * (len(seen[0].shape) - 2)
                    window = Window(ones, ones, ones, (0,) * len(ones))
        lead = 3 - len(window.kernel)
        seen = [_with_leading_axes(v, lead) for v in seen]
        ones, zeros = (1,) * lead, (0,) * lead
        window = Window(
            ones + window.kernel, ones + window.strides, ones + window.dilations, zeros + window.pads
        )  # fmt: skip
        x, *rest = seen
        return WindowGeometry(x, window, tuple(rest[: len(group.extra)]), tuple(rest[len(group.extra) :]))

    @property
    def taps(self) -> Taps:
        return Taps(self.window.kernel, self.window.strides, self.window.dilations)

    @property
    def size(self) -> tuple[Known, ...]:
        """The spatial sizes of the result."""
        return self.outputs[0].shape[2:]

    @property
    def has_unit_stride(self) -> bool:
        """Whether the elements of a row are adjacent in memory."""
        return self.x.strides[4] == 1 or self.x.shape[4] == 1

    @property
    def is_flat_pointwise(self) -> bool:
        """Whether the window is pointwise with stride 1, and all pixels are one row."""
        return _is_pointwise(self.window) and self.x.shape[2:4] == (1, 1) and self.x.shape[2:] == self.size

    @property
    def is_unpadded(self) -> bool:
        """Whether no window reads padding, for all values of symbolic sizes."""
        window = self.window
        for i, (n, out) in enumerate(zip(self.x.shape[2:], self.size, strict=True)):
            reach = (window.kernel[i] - 1) * window.dilations[i] + 1
            most = dims.add(dims.floordiv(dims.sub(n, reach), window.strides[i]), 1)
            if not dims.at_least(dims.sub(most, out), 0):
                return False
        return not any(window.pads)

    @property
    def rows_are_contiguous(self) -> bool:
        """Whether the rows of outputs and of epilogue operands follow each other without gaps."""
        return self.size[1] == 1 or all(views.is_mergeable(v, 3) for v in (*self.extra, *self.outputs))

    @property
    def operand(self) -> WindowArgs[Ref, Known]:
        x = self.x
        sizes = zip(x.shape[2:], self.size, self.window.pads, strict=True)
        z, y, along = (AxisArgs[Ref, Known](*each) for each in sizes)
        return WindowArgs(Ref.of(x), x.shape[0], ImageStrides(*x.strides), AxesArgs(z, y, along))

    def epilogue(self, group: Convolution | Pool) -> tuple[Epilogue, EpilogueArgs[Ref, Known]]:
        """The epilogue and its operands: channels are the rows of its matrices, the pixels of a row the columns."""
        extra, outputs = ([_nchw_matrix(v) for v in seen] for seen in (self.extra, self.outputs))
        columns = self.size[1] if self.rows_are_contiguous and self.size[2] == 1 else self.size[2]
        made = Epilogue(
            group.epilogue,
            tuple(Access.of(m, columns) for m in extra),
            tuple(Access.of(m, columns) for m in outputs),
            3,
        )
        return made, operands_of(extra, outputs)

    @property
    def nbytes(self) -> Known:
        """Bytes of all operands and outputs, each counted once; 0 where that is not expressible."""
        seen = (self.x, *self.extra, *self.outputs)
        return dims.known(dims.total(nbytes_of(v, v.dtype.itemsize) for v in seen)) or 0


def _is_pointwise(window: Window) -> bool:
    return all(k == s == 1 for k, s in zip(window.kernel, window.strides, strict=True)) and not any(window.pads)


def _with_leading_axes(view: View, lead: int) -> View:
    for _ in range(lead):
        view = views.inserted(view, 2)
    return view


def nhwc_matrix(view: View) -> Matrix:
    """A matrix for each (batch, z, y): the pixels of an image row are its rows, channels its columns."""
    b, c, z, y, x = view.strides
    return Matrix(view.storage, view.offset, (b, z, y), x, c)


def _nchw_matrix(view: View) -> Matrix:
    b, c, z, y, x = view.strides
    return Matrix(view.storage, view.offset, (b, z, y), c, x)


def nbytes_of(view: View, each: int) -> Known | None:
    """The bytes of a view's distinct elements, of ``each`` bytes."""
    sizes = (d for d, s in zip(view.shape, view.strides, strict=True) if s != 0)
    return dims.mul(dims.product(sizes), each)


# -- inside kernels


class ImageStrides(Arguments[M, N]):
    """The strides of an image: along batch and channels, and along its axes."""

    b: N
    c: N
    z: N
    y: N
    x: N

    @property
    def axes(self) -> tuple[N, N, N]:
        return self.z, self.y, self.x


class AxisArgs(Arguments[M, N]):
    """The sizes of an image and of the output along an axis, and the padding in front of the image."""

    size: N = field(metadata=named("in_{}"))
    out: N = field(metadata=named("out_{}"))
    pad: N = field(metadata=named("pad_{}"))


class PerAxis(Arguments[M, N]):
    """A number for each axis."""

    z: N
    y: N
    x: N

    @staticmethod
    def declared() -> PerAxis[Memory, DType]:
        return PerAxis(i64, i64, i64)

    @property
    def each(self) -> tuple[N, N, N]:
        return self.z, self.y, self.x


class TapsArgs(Arguments[M, N]):
    """The parameters of a window's taps."""

    is_inline: ClassVar[bool] = True
    kernel: PerAxis[M, N]
    dilation: PerAxis[M, N]
    stride: PerAxis[M, N]

    @staticmethod
    def declared() -> TapsArgs[Memory, DType]:
        return TapsArgs(PerAxis.declared(), PerAxis.declared(), PerAxis.declared())

    def count(self: TapsArgs[Buf, Val]) -> Val:
        """How many taps there are."""
        return self.kernel.z * self.kernel.y * self.kernel.x


class AxesArgs(Arguments[M, N]):
    """The axes of a window."""

    is_inline: ClassVar[bool] = True
    z: AxisArgs[M, N]
    y: AxisArgs[M, N]
    x: AxisArgs[M, N]


class WindowArgs(Arguments[M, N]):
    """The parameters of an image that a window slides over."""

    is_inline: ClassVar[bool] = True
    x: M
    batch: N
    strides: ImageStrides[M, N] = field(metadata=named("x"))
    axes: AxesArgs[M, N]

    @staticmethod
    def declared(dtype: DType) -> WindowArgs[Memory, DType]:
        axis = AxisArgs[Memory, DType](i64, i64, i64)
        return WindowArgs(Memory(dtype), i64, ImageStrides(i64, i64, i64, i64, i64), AxesArgs(axis, axis, axis))

    @property
    def each_axis(self) -> tuple[AxisArgs[M, N], AxisArgs[M, N], AxisArgs[M, N]]:
        return self.axes.z, self.axes.y, self.axes.x

    @property
    def size(self) -> tuple[N, N, N]:
        return self.axes.z.size, self.axes.y.size, self.axes.x.size

    @property
    def out(self) -> tuple[N, N, N]:
        return self.axes.z.out, self.axes.y.out, self.axes.x.out

    @property
    def pad(self) -> tuple[N, N, N]:
        return self.axes.z.pad, self.axes.y.pad, self.axes.x.pad


def taps_before(k: Kernel, taps: Taps, axis: int, first: Val, limit: Operand) -> Val:
    """The number of taps along ``axis`` that read elements before ``limit``, if tap 0 reads element ``first``."""
    dilation = taps.dilations[axis]
    return k.min((k.max(limit - first, 0) + (dilation - 1)) // dilation, taps.kernel[axis])
