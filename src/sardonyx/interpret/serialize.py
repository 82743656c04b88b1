"""Serialization of numpy programs to plain values and arrays; deserialization needs no graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program, Step

MEANINGS = "sardonyx.ops."
CUSTOM = "custom "
PLAIN = (type(None), bool, int, float, str, bytes)


class NotSerializable(Exception):
    """The reason why something cannot be serialized."""


class ModelNeeded(Exception):
    """A run needs more than was serialized: the model must be loaded."""


def serialize(program: Program) -> tuple[dict[str, Any], list[Any]]:
    """A program as plain values, and its constants."""
    plain = {
        "steps": [(_function(s), s.inputs, s.outputs, s.drops, s.node.label) for s in program.steps],
        "constants": [slot for slot, _ in program._constants],
        "width": program._width,
        "fed": program._fed,
        "given": program._given,
    }
    return plain, [value.numpy() for _, value in program._constants]


def _function(step: Step) -> tuple[str, str, dict[str, Any]]:
    """The function of a step by module and name, with its attributes; a custom operator's by domain and name."""
    from sardonyx.ops import registry

    kernel, attrs = (step.kernel.func, step.kernel.keywords) if isinstance(step.kernel, partial) else (step.kernel, {})
    module, name = getattr(kernel, "__module__", ""), getattr(kernel, "__name__", "")
    op = registry.find(step.node.domain, step.node.op_type)
    if op is not None and op.custom is not None and kernel == op.numpy:
        module, name = f"{CUSTOM}{op.domain}", op.name
    elif not module.startswith(MEANINGS) or getattr(import_module(module), name, None) is not kernel:
        raise NotSerializable(f"{step.node.label} is not run by one numpy function of Sardonyx")
    if not all(map(_is_serializable, attrs.values())):
        raise NotSerializable(f"{step.node.label} has an attribute that cannot be serialized")
    return module, name, attrs


def _is_serializable(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) in (list, tuple) and all(map(_is_serializable, value)))


class DeserializedProgram(Program):
    """A program whose nodes are known by their labels only."""

    def __init__(self, plain: dict[str, Any], arrays: Sequence[Any]) -> None:
        self._fed, self._given = plain["fed"], plain["given"]
        self._template = [None] * plain["width"]
        for slot, array in zip(plain["constants"], arrays, strict=True):
            self._template[slot] = array
        self.steps = [
            Step(_kernel(*function), inputs, outputs, drops, False, cast(Any, SimpleNamespace(label=label)))
            for function, inputs, outputs, drops, label in plain["steps"]
        ]

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        if context.record is not None:
            raise ModelNeeded
        return super().run(args, context)


def _kernel(module: str, name: str, attrs: dict[str, Any]) -> Any:
    if module.startswith(CUSTOM):
        from sardonyx.ops import registry

        op = registry.find(module[len(CUSTOM) :], name)
        if op is None:
            raise KeyError(f"the custom operator {name} is not defined")
        meaning: Any = op.numpy
    else:
        meaning = getattr(import_module(module), name)
    return partial(meaning, **attrs) if attrs else meaning
