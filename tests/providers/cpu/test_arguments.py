"""Groups of run-time parameters: their names in the argument block, and that kernels receive what steps give."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

import numpy as np
import pytest

from sardonyx.providers.cpu.codegen.launch import launch
from sardonyx.providers.cpu.kernels.common.loop_nest import NestArgs
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, MatrixArgs
from sardonyx.providers.cpu.language.arguments import Arguments, M, N, flat, named, rebuilt
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i64


class Pair(Arguments[M, N]):
    is_inline: ClassVar[bool] = True
    left: MatrixArgs[M, N]
    right: MatrixArgs[M, N] | None
    others: tuple[MatrixArgs[M, N] | None, ...] = field(metadata=named("o"))


def test_leaves_are_named_by_parameter_and_field():
    a = MatrixArgs("memory", 1, 2, (3, 4))
    assert flat(a=a) == {"a": "memory", "a_row": 1, "a_col": 2, "a_batch0": 3, "a_batch1": 4}
    assert list(flat(batch=BatchArgs((5, 6)), n=7)) == ["batch0", "batch1", "n"]
    nest = NestArgs(("x", "y"), (2,), ((1,), (3,)))
    assert flat(nest=nest) == {"m0": "x", "m1": "y", "n0": 2, "s0_0": 1, "s1_0": 3}


def test_none_has_no_name_but_keeps_its_place():
    a = MatrixArgs("memory", 1, 2, ())
    pair = Pair(a, None, (None, a))
    assert flat(pair=pair) == {"left": "memory", "left_row": 1, "left_col": 2, "o1": "memory", "o1_row": 1, "o1_col": 2}
    assert rebuilt({"pair": pair}, flat(pair=pair)) == {"pair": pair}


@kernel(lambda axes: {"x": MatrixArgs.declared(f32, axes), "batch": BatchArgs.declared(axes), "y": (f32,), "n": i64})
def diagonals(k: Kernel, x: MatrixArgs[Buf, Val], batch: BatchArgs[Buf, Val], y: Buf, n: Val, *, axes: int) -> None:
    with k.share(batch.count(k)) as at, k.loop(0, n) as i:
        y.store(at * n + i, x.at(batch.indices(at)).load(i * (x.row + x.col)))


@pytest.mark.parametrize("axes", [0, 1, 2])
def test_a_kernel_receives_what_is_given(axes):
    x = np.random.default_rng(axes).standard_normal((2, 3, 4, 4)[2 - axes :]).astype(np.float32)
    *strides, row, col = (s // 4 for s in x.strides)
    y = np.zeros((*x.shape[:-2], 4), np.float32)
    given = flat(x=MatrixArgs(x, row, col, tuple(strides)), batch=BatchArgs(x.shape[:-2]), y=y, n=4)
    launch(diagonals(axes=axes), **given)
    assert np.array_equal(y, np.diagonal(x, axis1=-2, axis2=-1))
