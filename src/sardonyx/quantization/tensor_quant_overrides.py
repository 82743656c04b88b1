"""The option ``TensorQuantOverrides`` for programs that build it, with onnxruntime's names.

    overrides = TensorQuantOverridesHelper({"hidden": [{"quant_type": QuantType.QUInt16}]})
    quantize_static(..., extra_options={"TensorQuantOverrides": overrides.get_dict()})

``sardonyx.quantization.overrides`` is what the quantizers read it with.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sardonyx.quantization.kinds import QuantType
from sardonyx.quantization.misuse import Misuse
from sardonyx.quantization.overrides import Known, read_overrides, types_in

if TYPE_CHECKING:
    import onnx

__all__ = ["QuantTypeInfo", "TensorQuantOverridesHelper"]

Entry = dict[str, Any]


@dataclass(eq=False)
class QuantTypeInfo:
    """How a tensor is quantized; None where the default holds. None is equal to anything, but for the axis."""

    quant_type: QuantType | None
    symmetric: bool | None = None
    reduce_range: bool | None = None
    axis: int | None = None

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantTypeInfo):
            return NotImplemented
        mine, others = ((each.symmetric, each.reduce_range) for each in (self, other))
        same = all(a is None or b is None or a == b for a, b in zip(mine, others, strict=True))
        return same and (self.quant_type, self.axis) == (other.quant_type, other.axis)

    @staticmethod
    def load_from_dict(
        raw_dict: Mapping[str, Any],
        default_qtype: QuantType | None = None,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        return QuantTypeInfo(
            raw_dict.get("quant_type", default_qtype),
            raw_dict.get("symmetric", default_symmetric),
            raw_dict.get("reduce_range", default_reduce_range),
            raw_dict.get("axis"),
        )

    def save_to_dict(self, raw_dict: Entry) -> None:
        raw_dict["quant_type"] = self.quant_type
        for key in ("symmetric", "reduce_range", "axis"):
            if getattr(self, key) is not None:
                raw_dict[key] = getattr(self, key)


class TensorQuantOverridesHelper(MutableMapping[str, list[Entry]]):
    """The overrides by tensor. The dictionary is the caller's own: changes of either are seen by both."""

    def __init__(self, raw_overrides: dict[str, list[Entry]]) -> None:
        self.overrides = raw_overrides

    def has_per_tensor_overrides(self, tensor_name: str) -> bool:
        return bool(self.overrides.get(tensor_name)) and "axis" not in self._first(tensor_name)

    def has_per_channel_overrides(self, tensor_name: str) -> bool:
        return "axis" in self._first(tensor_name)

    def overrides_scale_zp(self, tensor_name: str) -> bool:
        return self._first(tensor_name).keys() >= {"scale", "zero_point"}

    def _first(self, name: str) -> Entry:
        return (self.overrides.get(name) or [{}])[0]

    def get_per_tensor_overrides(self, tensor_name: str, default_val: Entry | None = None) -> Entry | None:
        """The override of a tensor as a whole; ValueError if its overrides are for channels."""
        if self.has_per_channel_overrides(tensor_name):
            raise Misuse("the tensor is overridden by channel", where=f"tensor {tensor_name!r}")
        found = self.overrides.get(tensor_name)
        if found is None:
            return default_val
        return found[0] if found else None

    def get_per_channel_overrides(self, tensor_name: str, default_val: list[Entry] | None = None) -> list[Entry] | None:
        """The overrides of the channels; ValueError if the first has no axis."""
        found = self.overrides.get(tensor_name, default_val)
        if not found:
            return None
        if "axis" not in found[0]:
            raise Misuse("the tensor is overridden as a whole: there is no axis", where=f"tensor {tensor_name!r}")
        return found

    def get_quant_types(self) -> set[QuantType]:
        """All types that the overrides ask for."""
        return types_in(self.overrides)

    def is_valid(
        self,
        initializers: Mapping[str, onnx.TensorProto],
        activation_names: Collection[str],
        default_activation_qtype: QuantType,
    ) -> tuple[bool, str | None]:
        """Whether the overrides fit a model of these weights and activations, and if not, why."""
        known: dict[str, Known] = {name: SimpleNamespace(const=None) for name in activation_names}
        for name, tensor in initializers.items():
            known[name] = SimpleNamespace(const=SimpleNamespace(shape=tuple(tensor.dims)))
        for name, entries in self.overrides.items():
            try:
                read_overrides(name, entries, known, default_activation_qtype)
            except Misuse as error:
                return False, str(error)
        return True, None

    def update_tensor_overrides(
        self,
        tensor_name: str,
        new_vals: Mapping[str, Any],
        channels: Collection[int] | None = None,
        overwrite: bool = True,
    ) -> bool:
        """Add to the overrides of a tensor, or of some of its channels. Without ``overwrite`` nothing changes, and the
        answer is False, if a value is there already.
        """
        if not new_vals:
            return False
        given = self.overrides.get(tensor_name) or [{}]
        chosen = [each for i, each in enumerate(given) if channels is None or i in channels]
        if not overwrite and any(not new_vals.keys().isdisjoint(each) for each in chosen):
            return False
        self.overrides[tensor_name] = given
        for each in chosen:
            each.update(new_vals)
        return True

    def get_node_output_qtype_info(
        self, output_name: str, default_qtype: QuantType | None, default_symmetric: bool | None = None
    ) -> QuantTypeInfo:
        """How a computed tensor is quantized by its producer."""
        found = self._first(output_name)
        return QuantTypeInfo(found.get("quant_type", default_qtype), found.get("symmetric", default_symmetric))

    def get_node_input_qtype_info(
        self,
        input_name: str,
        node_name: str,
        default_qtype: QuantType | None,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        """How a tensor is quantized for one of its readers, which may be given a second type."""
        found = self._first(input_name)
        second = found.get("convert")
        if second is None:
            return QuantTypeInfo.load_from_dict(found, default_qtype, default_symmetric, default_reduce_range)
        is_receiver = "recv_nodes" not in second or node_name in second["recv_nodes"]
        kind = second["quant_type"] if is_receiver else found.get("quant_type", default_qtype)
        return QuantTypeInfo(kind, second.get("symmetric", default_symmetric))

    def pprint_str(self, indent: int | None = None) -> str:
        return json.dumps(self.overrides, default=str, indent=indent)

    def empty(self) -> bool:
        return not self.overrides

    def get_dict(self) -> dict[str, list[Entry]]:
        return self.overrides

    def __setitem__(self, key: str, value: list[Entry]) -> None:
        self.overrides[key] = value

    def __getitem__(self, key: str) -> list[Entry]:
        return self.overrides[key]

    def __delitem__(self, key: str) -> None:
        del self.overrides[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.overrides)

    def __len__(self) -> int:
        return len(self.overrides)

    def __repr__(self) -> str:
        return f"TensorQuantOverridesHelper({self.overrides})"
