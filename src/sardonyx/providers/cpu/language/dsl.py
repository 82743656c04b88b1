"""The kernel language: Python that writes LLVM IR, so that a kernel reads as loops over vectors.

    @kernel(x=(f32,), y=(f32,), rows=i64, cols=i64)
    def double(k, x, y, rows, cols, *, factor):
        with k.share(rows) as r:                      # the rows that fall to this thread
            for t in k.tiles(cols):                   # vectors of the row; the last one masked
                y.at(r * cols).store(t, x.at(r * cols).load(t) * factor)

``double(factor=2.0)`` is a ``Spec``: a kernel and its constants, known by a digest before any IR exists. A parameter in
parentheses is memory, any other a number; a string in place of a type names the constant that holds it. A dataclass of
types (``arguments``) declares several parameters that belong together, and the body receives that dataclass with their
values. ``for`` over a Python range unrolls. ``for t in k.tiles(...)`` writes its body twice, once for whole vectors and
once for the masked rest.

Every kernel is a C function ``kernel(args, context, thread, threads)``. ``args`` is a block of int64: the step's
number, then four words for each memory parameter (base, byte offset, bytes from there on, bytes in front of it) and one
for each number. A base is a row of the context's table of memories, so no argument block holds an address. ``context``
begins with the slots of ``Context``.

No floating-point flag is set: what is written is what is computed; ``k.fma`` is the only way to a fused multiply-add.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sardonyx import dtypes, fingerprint
from sardonyx.dtypes import DType
from sardonyx.forks import cached_property
from sardonyx.providers.cpu.language.arguments import flat, rebuilt
from sardonyx.providers.cpu.language.writer import Kernel
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.records import Record

Params = Mapping[str, Any]
"""By name: ``(type,)`` for memory, a type for a number, ``Arguments`` of types for several parameters. A type may be
the name of the constant that holds it."""

MAX_PARAMS = 1 << 12
_params: dict[str, dict[str, tuple[str, DType]]] = {}
"""The parameters of kernels, by their digest: steps alike have a ``Spec`` each."""


class Spec(Record):
    """A kernel with its compile-time constants: what is compiled, and the key of the object cache."""

    definition: Definition
    statics: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        return self.definition.name

    @cached_property
    def declared(self) -> Params:
        """The parameters as the kernel declares them."""
        given = self.definition.params
        found: Params = given(**dict(self.statics)) if callable(given) else given
        return found

    @cached_property
    def params(self) -> dict[str, tuple[str, DType]]:
        """By name: ``memory`` or ``number``, and the type."""
        found = _params.get(self.digest)
        if found is None:
            if len(_params) >= MAX_PARAMS:
                _params.clear()
            found = _params[self.digest] = self._params()
        return found

    def _params(self) -> dict[str, tuple[str, DType]]:
        statics = dict(self.statics)
        out: dict[str, tuple[str, DType]] = {}
        for name, spec in flat(**self.declared).items():
            kind, t = ("memory", spec[0]) if isinstance(spec, tuple) else ("number", spec)
            out[name] = (kind, statics[t] if isinstance(t, str) else t)
        return out

    @cached_property
    def digest(self) -> str:
        """A digest of source and constants; computed without emitting IR."""
        own = "" if self.definition.is_ours else fingerprint.of(self.definition.params, self.definition.body)
        text = f"{source_digest()}|{self.definition.module}.{self.name}|{own}|{self.statics!r}"
        return hashlib.sha256(text.encode()).hexdigest()

    def emit(self, isa: Isa, *, checked: bool = False) -> Kernel:
        """The kernel's IR."""
        k = Kernel(self.name, isa, checked=checked)
        values = k.open_c_function(self.params) if self.definition.is_c_function else k.open(self.params)
        self.definition.body(k, **rebuilt(self.declared, values), **dict(self.statics))
        k.close()
        return k


class Definition(Record):
    """A kernel before its constants are given."""

    name: str
    module: str
    params: Any
    body: Callable[..., None]
    is_c_function: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether ``source_digest`` covers its source."""
        return self.module.startswith("sardonyx.")

    def __call__(self, **statics: Any) -> Spec:
        return Spec(self, tuple(sorted(statics.items())))


def kernel(params: Callable[..., Params] | None = None, /, **named: Any) -> Callable[[Callable[..., None]], Definition]:
    """Declare a kernel by its parameters: by name, or by a function from the constants to them."""

    def wrap(body: Callable[..., None]) -> Definition:
        return Definition(body.__name__, body.__module__, params or named, body)

    return wrap


def function(**named: Any) -> Callable[[Callable[..., None]], Definition]:
    """Declare a native function that takes its parameters as C does: addresses and numbers."""

    def wrap(body: Callable[..., None]) -> Definition:
        return Definition(body.__name__, body.__module__, named, body, is_c_function=True)

    return wrap


@cache
def source_digest() -> str:
    """A digest of every source file that decides the IR of kernels."""
    here = Path(__file__).parents[1]
    h = hashlib.sha256()
    for path in (*sorted(here.rglob("*.py")), Path(inspect.getfile(dtypes)), here.parents[1] / "ir" / "scalar.py"):
        h.update(path.read_bytes())
    return h.hexdigest()


__all__ = ["Definition", "Kernel", "Params", "Spec", "function", "kernel", "source_digest"]
