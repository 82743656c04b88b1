"""Custom operators, written in Python.

    @custom_op("my.domain", "Swish2")
    def swish2(e, x, *, beta=1.0):
        return x * e.sigmoid(beta * x)

There are three kinds. A *scalar* function, as above, defines an elementwise operator: it is compiled and fused with
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from sardonyx import dtypes, forks
from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument, InvalidGraph, RuntimeException, SardonyxError
from sardonyx.ir import dims
from sardonyx.ir.graph import Graph, Node
from sardonyx.ir.scalar import Expr, Program, trace
from sardonyx.ir.types import TensorType
from sardonyx.ops import pointwise, registry
from sardonyx.ops.registry import Custom
from sardonyx.ops.rules import RULES, Content, Result, Undecided, broadcast
from sardonyx.ops.signature import Signature

F = TypeVar("F", bound=Callable[..., Any])
Types = tuple["TensorType | None", ...]

RESERVED = ("", "ai.onnx", "com.microsoft", "com.ms")
"""Domains, and their subdomains, in which users cannot define operators."""

_lock = forks.lock()


def custom_op(
    domain: str,
    name: str,
    *,
    infer: Callable[..., Any] | None = None,
    kernel: Callable[..., Any] | None = None,
    types: Sequence[Any] | None = None,
) -> Callable[[F], F]:
    """Define the operator ``name`` of ``domain`` for every session that is created from now on.

    The decorated function takes tensors by position (a default of None makes one optional) and attributes by keyword.
    ``infer(*types, **attributes)`` returns the TensorType of the output, or a tuple of them; ``kernel(*inputs,
    *outputs, **attributes)`` returns a kernel and its arguments; ``types`` are the element types that inputs may have.
    A function of the same module and name may be defined again and replaces the first.
    """
    if not (isinstance(domain, str) and isinstance(name, str) and name.isidentifier()):
        raise InvalidArgument("an operator is named by a domain and an identifier", got=f"{domain!r}, {name!r}")
    if any(domain == d or (d and domain.startswith(f"{d}.")) for d in RESERVED):
        raise InvalidArgument("a custom operator needs its own domain", where=f"{domain}.{name}", got=repr(domain))
    if kernel is not None and infer is None:
        raise InvalidArgument("an operator with a kernel states its types", where=f"{domain}.{name}", expected="infer=")
    allowed = None if types is None else frozenset(map(_dtype, types))

    def define(fn: F) -> F:
        scalar = infer is None
        signature = Signature.of(f"{domain}.{name}", fn, skipped=int(scalar), types=allowed)
        form = _Scalar(signature, fn) if infer is None else _Arrays(signature, fn, infer)
        with _lock:
            _refuse_clash(domain, name, fn)
            custom = Custom(fn, (fn, infer, kernel, types and [t.name for t in allowed or ()]), form.check, kernel)
            RULES[domain, name] = form.rule
            if infer is None:
                pointwise.PROGRAMS[domain, name] = fn
            else:
                pointwise.PROGRAMS.pop((domain, name), None)
            registry.add(domain, name, form.meaning, custom=custom)
        return fn

    return define


def modules_of(graph: Graph) -> list[str]:
    """The modules that define the custom operators of a graph; importing them in another process defines the operators
    there.
    """
    used = {(node.domain, node.op_type) for node in graph.all_nodes() if node.domain}
    found = {op.custom.function.__module__ for op in registry.customs() if op.custom and (op.domain, op.name) in used}
    return sorted(name for name in found if getattr(sys.modules.get(name), "__spec__", None) is not None)


def _dtype(given: Any) -> DType:
    try:
        return given if isinstance(given, DType) else dtypes.of_numpy(np.dtype(given))
    except (TypeError, KeyError, InvalidArgument):
        raise InvalidArgument("not an element type", expected="a numpy type, or its name", got=repr(given)) from None


def _refuse_clash(domain: str, name: str, fn: Callable[..., Any]) -> None:
    found = registry.find(domain, name)
    if found is None:
        return
    old = found.custom.function if found.custom is not None else found.numpy
    if found.custom is None or (old.__module__, old.__qualname__) != (fn.__module__, fn.__qualname__):
        raise InvalidArgument(
            f"{domain}.{name} is defined already",
            where=f"{fn.__module__}.{fn.__qualname__}",
            got=f"a definition in {old.__module__}.{old.__qualname__}",
        )


class _Scalar:
    """A scalar program applied to arrays, with broadcasting."""

    def __init__(self, signature: Signature, fn: Callable[..., Expr]) -> None:
        self.signature, self.fn = signature, fn
        by_numpy = pointwise.meaning_of(signature.name, fn)

        @wraps(by_numpy)
        def meaning(*inputs: Any, **attributes: Any) -> Any:
            signature.check_types(tuple(_type_of(x) for x in inputs))
            return by_numpy(*inputs, **pointwise.hashable(attributes))

        self.meaning = meaning

    def check(self, node: Node) -> None:
        self.signature.check(node, outputs=1)
        try:
            program = self._program(node)
        except Exception as error:
            raise _user_error(error, node, self.signature.name) from error
        if program.type is None:
            raise InvalidGraph(
                f"{self.signature.name} returns a constant without a type", where=node.label, hint="cast it: e.cast"
            )

    def rule(self, node: Node, content: Content) -> Result:
        present = [v.type for v in node.inputs if v is not None]
        tensors = [t for t in present if isinstance(t, TensorType)]
        if len(tensors) < len(present):
            raise Undecided
        kind = self._program(node).type
        dtype = tensors[kind].dtype if isinstance(kind, int) else kind
        return None if dtype is None else [TensorType(dtype, broadcast(t.shape for t in tensors))]

    def _program(self, node: Node) -> Program:
        return trace(self.fn, tuple(v is not None for v in node.inputs), **pointwise.hashable(node.attrs))


class _Arrays:
    """A function of arrays; its results are checked against the types that ``infer`` returns."""

    def __init__(self, signature: Signature, fn: Callable[..., Any], infer: Callable[..., Any]) -> None:
        self.signature, self.infer = signature, infer

        @wraps(fn)
        def meaning(*inputs: Any, **attributes: Any) -> tuple[Any, ...]:
            stated = self._stated(tuple(_type_of(x) for x in inputs), attributes)
            made = fn(*map(_read_only, inputs), **attributes)
            results = made if isinstance(made, tuple) else (made,)
            if len(results) != len(stated):
                raise RuntimeException(
                    f"{signature.name} returned another number of outputs than infer",
                    expected=len(stated),
                    got=len(results),
                )
            return tuple(_check_result(signature.name, x, t) for x, t in zip(results, stated, strict=True))

        self.meaning = meaning

    def check(self, node: Node) -> None:
        self.signature.check(node)
        try:
            stated = self.rule(node, lambda _: None)
        except Undecided:
            return
        except Exception as error:
            raise _user_error(error, node, f"infer of {self.signature.name}") from error
        if stated is not None and len(node.outputs) > len(stated):
            raise InvalidGraph("wrong number of outputs", where=node.label, expected=len(stated), got=len(node.outputs))

    def rule(self, node: Node, content: Content) -> Result:
        given = [None if v is None else v.type for v in node.inputs]
        if any(v is not None and not _is_valid_type(t) for v, t in zip(node.inputs, given, strict=True)):
            raise Undecided
        return self._stated(tuple(t if isinstance(t, TensorType) else None for t in given), node.attrs)

    def _stated(self, given: Types, attributes: dict[str, Any]) -> tuple[TensorType, ...]:
        self.signature.check_types(given)
        known = [t and TensorType(t.dtype, tuple(map(dims.known, t.shape or ()))) for t in given]
        found = self.infer(*known, **attributes)
        stated = found if isinstance(found, tuple) else (found,)
        for t in stated:
            if not isinstance(t, TensorType) or not isinstance(t.dtype, DType):
                raise InvalidArgument(f"infer of {self.signature.name} must return TensorTypes", got=repr(t))
            if any(not (d is None or isinstance(d, (int, dims.Expr))) for d in t.shape or ()):
                raise InvalidArgument(
                    f"infer of {self.signature.name} returned an invalid size",
                    got=repr(t.shape),
                    hint="sizes may be symbols: compute with sardonyx.ir.dims",
                )
        return stated


def _is_valid_type(t: Any) -> bool:
    return isinstance(t, TensorType) and t.shape is not None and None not in t.shape


def _type_of(x: Any) -> TensorType | None:
    return TensorType(dtypes.of_numpy(x.dtype), x.shape) if isinstance(x, np.ndarray) else None


def _read_only(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        x = x.view()
        x.flags.writeable = False
    return x


def _check_result(name: str, made: Any, stated: TensorType) -> Any:
    """The result, checked to have the inferred type."""
    array = np.asarray(made) if isinstance(made, (np.generic, int, float)) else made
    if not isinstance(array, np.ndarray):
        raise RuntimeException(f"{name} did not return an array", expected=stated, got=type(made).__name__)
    fits = stated.shape is None or (
        len(stated.shape) == array.ndim
        and all(not isinstance(d, int) or d == n for d, n in zip(stated.shape, array.shape, strict=True))
    )
    if array.dtype != stated.dtype.numpy or not fits:
        raise RuntimeException(
            f"{name} returned a type other than inferred", expected=stated, got=f"{array.dtype}{list(array.shape)}"
        )
    return array


def _user_error(error: Exception, node: Node, who: str) -> SardonyxError:
    if isinstance(error, SardonyxError):
        error.where = error.where or node.label
        return error
    return InvalidGraph(f"{who} raised {type(error).__name__}: {error}", where=node.label)
