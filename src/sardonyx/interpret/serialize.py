"""Serialization of numpy programs to plain values and arrays; deserialization needs no graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from sardonyx.interpret import bodies
from sardonyx.interpret.bodies import Runnable
from sardonyx.interpret.context import ModelNeeded, RunContext
from sardonyx.interpret.program import Program, Step

Function = tuple[tuple[str, str, str], dict[str, Any], "dict[str, Any] | None"]
"""What a step runs: an operator by family, domain and name, or a function that runs bodies by name alone. Then its
attributes, and the serialized bodies.
"""
PLAIN = (type(None), bool, int, float, str, bytes)


class NotSerializable(Exception):
    """The reason why something cannot be serialized."""


def serialize(program: Program, body: Callable[[Any], Any]) -> tuple[dict[str, Any], list[Any]]:
    """A program as plain values, and its constants. ``body`` serializes a body of control flow."""
    plain = {
        "steps": [(_function(s, body), s.inputs, s.outputs, s.drops, s.node.label) for s in program.steps],
        "constants": [slot for slot, _ in program._constants],
        "width": program._width,
        "fed": program._fed,
        "given": program._given,
    }
    return plain, [value.numpy() for _, value in program._constants]


def _function(step: Step, body: Callable[[Any], Any]) -> Function:
    kernel, attrs = (step.kernel.func, step.kernel.keywords) if isinstance(step.kernel, partial) else (step.kernel, {})
    if (name := getattr(kernel, "__name__", "")) in bodies.FUNCTIONS and bodies.FUNCTIONS[name] is kernel:
        plain = {key: value for key, value in attrs.items() if key != "bodies"}
        found: tuple[str, str, str] = "", "", name
        inner = {key: body(compiled) for key, compiled in attrs["bodies"].items()}
    else:
        from sardonyx.ops import registry

        plain, inner = attrs, None
        op = registry.find(step.node.domain, step.node.op_type)
        family = None if op is None or op.numpy != kernel else registry.family_of(op)
        if family is None:
            raise NotSerializable(f"{step.node.label} is not run by one numpy function of Sardonyx")
        found = family, step.node.domain, step.node.op_type
    if not all(map(_is_serializable, plain.values())):
        raise NotSerializable(f"{step.node.label} has an attribute that cannot be serialized")
    return found, plain, inner


def _is_serializable(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) in (list, tuple) and all(map(_is_serializable, value)))


class DeserializedProgram(Program):
    """A program whose nodes are known by their labels only."""

    def __init__(self, plain: dict[str, Any], arrays: Sequence[Any], body: Callable[[Any], Runnable]) -> None:
        """``body`` deserializes a body of control flow."""
        self._fed, self._given = plain["fed"], plain["given"]
        self._template = [None] * plain["width"]
        for slot, array in zip(plain["constants"], arrays, strict=True):
            self._template[slot] = array
        self.steps = [
            Step(_kernel(f, body), inputs, outputs, drops, f[2] is not None, cast(Any, SimpleNamespace(label=label)))
            for f, inputs, outputs, drops, label in plain["steps"]
        ]

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        if context.record is not None:
            raise ModelNeeded
        return super().run(args, context)


def _kernel(function: Function, body: Callable[[Any], Runnable]) -> Any:
    (family, domain, name), attrs, inner = function
    if inner is not None:
        compiled = {key: body(serialized) for key, serialized in inner.items()}
        return partial(bodies.FUNCTIONS[name], bodies=compiled, **attrs)
    from sardonyx.ops import registry

    meaning = registry.of_family(family, domain, name).numpy
    return partial(meaning, **attrs) if attrs else meaning
