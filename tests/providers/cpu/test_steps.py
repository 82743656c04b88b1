"""Steps: what a kernel is given is what it takes."""

from __future__ import annotations

import pytest

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, f32, u8
from sardonyx.providers.cpu.program.steps import Ref, Step


@kernel(x=(f32,), y=(u8,))
def two_buffers(k: Kernel, x: Buf, y: Buf) -> None: ...


def step(x: DType, y: DType) -> Step:
    args = {"x": Ref(Storage("input", x, 4)), "y": Ref(Storage("input", y, 4))}
    return Step(two_buffers(), args, frozenset(), ())


def test_elements_of_another_size_are_noticed() -> None:
    step(dtypes.f32, dtypes.f64).verify()
    step(dtypes.i32, dtypes.u8).verify()
    with pytest.raises(TypeError, match="two_buffers takes x as f32, it is given f16"):
        step(dtypes.f16, dtypes.u8).verify()
