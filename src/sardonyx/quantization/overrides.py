"""``TensorQuantOverrides``: how single tensors are quantized, read and checked against the model."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sardonyx.ir.graph import Model, Value
from sardonyx.quantization.kinds import QuantType
from sardonyx.quantization.misuse import Misuse

KEYS = ("quant_type", "scale", "zero_point", "symmetric", "reduce_range", "rmin", "rmax", "axis", "convert")
_COMPUTED = ("symmetric", "reduce_range", "rmin", "rmax")
"""What scale and zero point are computed from: useless if those are given."""
_EQUAL = ("quant_type", "axis", "symmetric", "reduce_range")
"""What all channels have in common."""


class Known(Protocol):
    """What is asked of a tensor of the model: whether it is a constant, and of which shape."""

    @property
    def const(self) -> Any: ...


@dataclass(frozen=True)
class Override:
    """What is given for a tensor or for one of its channels; None where nothing is."""

    quant_type: QuantType | None = None
    scale: Any = None
    zero_point: Any = None
    symmetric: bool | None = None
    reduce_range: bool | None = None
    rmin: Any = None
    rmax: Any = None
    axis: int | None = None
    convert: Override | None = None
    """A second type, for the nodes in ``receivers``, or for all readers if that is None."""
    receivers: frozenset[str] | None = None

    @property
    def has_scale(self) -> bool:
        return self.scale is not None


NOTHING = Override()


class Overrides:
    """Overrides by tensor: one per tensor, or one per channel, where a single one with an axis counts for all."""

    def __init__(self, given: Mapping[str, Sequence[Override]]) -> None:
        self._given = {name: tuple(each) for name, each in given.items() if each and each != (NOTHING,)}

    @classmethod
    def of(cls, raw: Mapping[str, Any] | None, model: Model, activation_type: QuantType) -> Overrides:
        """Read the option; an override of a tensor that the model lacks, or that contradicts itself, is an error."""
        values = _values(model)
        made = {name: read_overrides(name, entries, values, activation_type) for name, entries in (raw or {}).items()}
        return cls(made)

    def __contains__(self, name: object) -> bool:
        return name in self._given

    def per_tensor(self, name: str) -> Override:
        """The override of a whole tensor, an empty one if there is none."""
        given = self._given.get(name, (NOTHING,))
        if given[0].axis is not None:
            raise _bad(name, "the tensor is quantized as a whole", "its overrides are for channels")
        return given[0]

    def has_per_tensor(self, name: str) -> bool:
        return name in self._given and self._given[name][0].axis is None

    def per_channel(self, name: str) -> tuple[Override, ...]:
        """The overrides of the channels, empty if there are none."""
        given = self._given.get(name, ())
        return given if given and given[0].axis is not None else ()

    def first(self, name: str) -> Override:
        """What holds for all channels."""
        return self._given.get(name, (NOTHING,))[0]

    def every(self, name: str) -> tuple[Override, ...]:
        return self._given.get(name, ())

    def types(self) -> Iterator[QuantType]:
        """All types that are asked for."""
        for entries in self._given.values():
            for each in entries:
                yield from (t.quant_type for t in (each, each.convert) if t is not None and t.quant_type is not None)


def types_in(raw: Mapping[str, Any] | None) -> set[QuantType]:
    """The types that the option asks for, before the model is known."""
    found = set()
    for entries in (raw or {}).values():
        for each in entries if isinstance(entries, Sequence) else ():
            if isinstance(each, Mapping):
                found |= {each.get("quant_type"), (each.get("convert") or {}).get("quant_type")}
    return {each for each in found if isinstance(each, QuantType)}


def _values(model: Model) -> dict[str, Value]:
    graph = model.graph
    found = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    found.update((out.name, out) for node in graph.nodes for out in node.outputs if out.name)
    return found


def _bad(name: str, expected: object, got: object, hint: str | None = None) -> Misuse:
    return Misuse("TensorQuantOverrides are wrong", where=f"tensor {name!r}", expected=expected, got=got, hint=hint)


def read_overrides(
    name: str, raw: Any, values: Mapping[str, Known], activation_type: QuantType
) -> tuple[Override, ...]:
    if name not in values:
        near = difflib.get_close_matches(name, values, 1)
        hint = f"did you mean {near[0]!r}?" if near else None
        raise _bad(name, "a tensor of the model", "it has none of this name", hint)
    if not isinstance(raw, Sequence) or isinstance(raw, str) or not all(isinstance(each, Mapping) for each in raw):
        raise _bad(name, "a list of dictionaries", raw)
    made = tuple(_one(name, each, KEYS) for each in raw)
    if not made:
        return ()
    value, first = values[name], made[0]
    if len(made) > 1 or first.axis is not None:
        _check_channels(name, made, value)
    elif first.convert is not None:
        _check_conversion(name, first, value, activation_type)
    if first.reduce_range is not None and value.const is None:
        raise _bad(name, "reduce_range for weights only", "the tensor is computed")
    return made


def _one(name: str, raw: Mapping[str, Any], allowed: Iterable[str]) -> Override:
    for key in raw:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), list(allowed), 1)
            raise _bad(name, ", ".join(allowed), key, f"did you mean {near[0]}?" if near else None)
    if ("scale" in raw) != ("zero_point" in raw):
        raise _bad(name, "scale and zero_point together", ", ".join(raw))
    useless = [key for key in _COMPUTED if "scale" in raw and key in raw]
    if useless:
        raise _bad(name, "scale and zero_point, or what they are computed from", ", ".join(useless))
    kind = raw.get("quant_type")
    if kind is not None and not isinstance(kind, QuantType):
        raise _bad(name, "a QuantType as quant_type", kind)
    plain = {key: raw.get(key) for key in KEYS if key != "convert"}
    convert, receivers = raw.get("convert"), raw.get("recv_nodes")
    return Override(
        **plain,
        convert=None if convert is None else _one(name, convert, (*KEYS[:-1], "recv_nodes")),
        receivers=None if receivers is None else frozenset(receivers),
    )


def _check_channels(name: str, made: Sequence[Override], value: Known) -> None:
    first = made[0]
    if value.const is None:
        raise _bad(name, "one override: only weights have channels", f"{len(made)} with axis {first.axis}")
    if first.axis is None:
        raise _bad(name, "the axis of the channels in the first override", "none")
    shape = value.const.shape
    if not -len(shape) <= first.axis < len(shape):
        raise _bad(name, f"an axis of {shape}", first.axis)
    if len(made) not in (1, shape[first.axis]):
        raise _bad(name, f"1 or {shape[first.axis]} overrides, as the tensor has channels", len(made))
    if any(each.convert is not None for each in made):
        raise _bad(name, "convert for computed tensors only", "a weight")
    if (first.rmin is None) != (first.rmax is None):
        raise _bad(name, "rmin and rmax together", "one of them")
    for i, each in enumerate(made[1:], 1):
        for key in _EQUAL:
            if getattr(each, key) not in (None, getattr(first, key)):
                raise _bad(name, f"the same {key} for all channels", f"another at channel {i}")
        if each.has_scale != first.has_scale or (each.rmin is None) != (first.rmin is None):
            raise _bad(name, "the same keys for all channels", f"others at channel {i}")


def _check_conversion(name: str, override: Override, value: Known, activation_type: QuantType) -> None:
    convert = override.convert
    assert convert is not None
    if value.const is not None:
        raise _bad(name, "convert for computed tensors only", "a weight")
    if convert.quant_type is None:
        raise _bad(name, "a quant_type in convert", "none")
    if convert.reduce_range is not None:
        raise _bad(name, "reduce_range for weights only", "the tensor is computed")
    if convert.quant_type is (override.quant_type or activation_type):
        raise _bad(name, "a type in convert that differs from the tensor's own", convert.quant_type)
