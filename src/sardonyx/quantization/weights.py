"""Parameters of constants: from their own values, or from what the user gives for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.ir.graph import Value
from sardonyx.quantization.kinds import QuantType
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.overrides import Override
from sardonyx.quantization.parameters import Parameters, block_parameters, parameters_of_data
from sardonyx.quantization.settings import Settings

Array = np.ndarray[Any, Any]


def constant_parameters(
    value: Value,
    settings: Settings,
    *,
    is_weight: bool,
    axis: int | None,
    blocks: bool = True,
    reduces: bool = True,
    kind: QuantType | None = None,
    symmetric: bool | None = None,
) -> Parameters:
    """Parameters of an initializer. ``axis`` is that of its channels, None for the whole tensor. ``kind`` and
    ``symmetric`` are used where the user gave none; ``reduces``: whether reduce_range applies.
    """
    every = settings.overrides.every(value.name)
    first = settings.overrides.first(value.name)
    kind = first.quant_type or kind or (settings.weight_type if is_weight else settings.activation_type)
    if first.axis is not None:
        axis = first.axis
    data = value.numpy()
    if axis is not None:
        axis = _within(axis, data, value.name)
    if first.has_scale:
        return _given(every, kind, data, axis)
    if symmetric is None:
        is_asked = settings.is_weight_symmetric(kind) if is_weight else settings.options.activation_symmetric
        symmetric = axis is not None or bool(is_asked)
    if first.symmetric is not None:
        symmetric = bool(first.symmetric)
    block_size = settings.options.block_size
    if is_weight and block_size and blocks and data.ndim == 2:
        return block_parameters(data, kind, axis or 0, block_size, symmetric=symmetric)
    return parameters_of_data(
        data,
        kind,
        axis=axis,
        symmetric=symmetric,
        reduce_range=bool(settings.reduce_range and reduces if first.reduce_range is None else first.reduce_range),
        minimum_range=settings.options.minimum_real_range,
        low=_per_channel(every, "rmin"),
        high=_per_channel(every, "rmax"),
    )


def _within(axis: int, data: Array, name: str) -> int:
    if not -data.ndim <= axis < data.ndim:
        raise Misuse(
            "the weight has no axis for its channels", where=f"weight {name!r}", expected=f"rank {data.ndim}", got=axis
        )
    return axis % data.ndim


def _given(every: tuple[Override, ...], kind: QuantType, data: Array, axis: int | None) -> Parameters:
    if axis is None:
        scale, zero = (np.asarray(each).reshape(()) for each in (every[0].scale, every[0].zero_point))
    else:
        count = data.shape[axis]
        scale, zero = (
            np.broadcast_to(np.array([np.asarray(each).reshape(()) for each in values]), count)
            for values in ([o.scale for o in every], [o.zero_point for o in every])
        )
    return Parameters(kind, scale.astype(data.dtype), zero.astype(kind.dtype.numpy), axis)


def _per_channel(every: tuple[Override, ...], key: str) -> Any:
    values = [getattr(each, key) for each in every]
    if not values or values[0] is None:
        return None
    return values[0] if len(values) == 1 else np.array(values)
