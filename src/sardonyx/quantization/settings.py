"""What one quantization is asked to do."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.ir.graph import Node, Value
from sardonyx.quantization.calibrate.tensors import TensorData, TensorsData
from sardonyx.quantization.kinds import QuantType
from sardonyx.quantization.options import ExtraOptions
from sardonyx.quantization.overrides import NOTHING, Override, Overrides
from sardonyx.quantization.parameters import (
    Parameters,
    float8_scale_and_zero_point,
    restricted_scale_and_zero_point,
    scale_and_zero_point,
)

_NEVER = frozenset({"QuantizeLinear", "DequantizeLinear"})
LARGEST = 1e30
"""Tensors that reach this magnitude (masks filled with the smallest float, for example) have no useful scale."""


@dataclass
class Settings:
    """Types, choices of nodes, options and calibrated ranges."""

    op_types: Collection[str]
    activation_type: QuantType = QuantType.QUInt8
    weight_type: QuantType = QuantType.QInt8
    per_channel: bool = False
    reduce_range: bool = False
    nodes_to_quantize: Collection[str] = ()
    nodes_to_exclude: Collection[str] = ()
    options: ExtraOptions = field(default_factory=ExtraOptions)
    overrides: Overrides = field(default_factory=lambda: Overrides({}))
    ranges: TensorsData | None = None
    assumed_types: frozenset[str] = frozenset()
    """Names of the results whose type is not known and was taken to be ``options.default_tensor_type``."""
    float_between: bool = False
    """Readers of a quantized tensor that are not quantized themselves, and outputs, take it as it was (QDQ format).
    Of a constant only readers that are excluded by name do, so that a table that others read is not stored twice.
    """

    def wants(self, node: Node) -> bool:
        """Whether a node is to be quantized. A node that replaced another goes by that one's name too."""
        if self.nodes_to_quantize and {node.name, *node.origin}.isdisjoint(self.nodes_to_quantize):
            return False
        return node.op_type in self.op_types and node.op_type not in _NEVER and not self.excludes(node)

    def excludes(self, node: Node) -> bool:
        """Whether a node is to stay in float, by its name."""
        return not {node.name, *node.origin}.isdisjoint(self.nodes_to_exclude)

    def is_weight_symmetric(self, kind: QuantType) -> bool:
        given = self.options.weight_symmetric
        return kind.is_signed if given is None else bool(given)

    def range_of(self, value: Value) -> TensorData | None:
        return None if self.ranges is None else self.ranges.get(value.name)

    def activation_parameters(self, value: Value, override: Override = NOTHING) -> Parameters | None:
        """Scale and zero point of a computed tensor; None if it was not calibrated or its range is useless."""
        kind = override.quant_type or self.activation_type
        found = self.range_of(value)
        dtype = value.dtype.numpy if value.dtype is not None else np.dtype(np.float32)
        if override.has_scale:
            return Parameters(kind, _scalar(override.scale, dtype), _scalar(override.zero_point, kind.dtype.numpy))
        if found is None:
            return None
        if kind.is_float8:
            return Parameters(kind, *float8_scale_and_zero_point(np.asarray(found.avg_std[1])))
        low, high = found.range_value
        low = np.asarray(low if override.rmin is None else override.rmin, low.dtype).reshape(())
        high = np.asarray(high if override.rmax is None else override.rmax, high.dtype).reshape(())
        if not float(max(-low, high)) < LARGEST:
            return None
        return self._from_range(kind, low, high, override)

    def _from_range(self, kind: QuantType, low: Any, high: Any, override: Override) -> Parameters:
        options = self.options
        symmetric = bool(options.activation_symmetric if override.symmetric is None else override.symmetric)
        minimum = options.minimum_real_range
        if options.activation_restricted_asymmetric and kind is QuantType.QUInt8 and not symmetric:
            scale, zero = restricted_scale_and_zero_point(float(low), float(high), minimum_range=minimum)
            return Parameters(kind, scale.astype(low.dtype), zero)
        return Parameters(
            kind,
            *scale_and_zero_point(
                low, high, kind, symmetric=symmetric, reduce_range=bool(override.reduce_range), minimum_range=minimum
            ),
        )


def _scalar(value: Any, dtype: Any) -> Any:
    made = np.asarray(value).reshape(()).astype(dtype)
    assert not (made.dtype.kind == "f" and math.isnan(made))
    return made
