"""Sessions of untrusted models (``trust="untrusted"``): what they may not contain, and how they run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sardonyx import limits
from sardonyx.errors import InvalidArgument
from sardonyx.limits import UNTRUSTED, Budget, Limits, forbidden

if TYPE_CHECKING:
    from sardonyx.ir.graph import Graph
    from sardonyx.partition.provider import RunContext
    from sardonyx.session.engine import BuildOptions
    from sardonyx.session.options import SessionOptions
    from sardonyx.session.session import InferenceSession

UNBOUNDED_OPERATORS = {
    "ImageDecoder": "decode images with code of other libraries; feed the pixels",
    "FlexAttention": "use FlexAttention, which runs on onnx's reference implementation",
    "EPContext": "refer to compiled code of a provider",
}
"""Operators whose memory and time cannot be bounded."""

_ENDLESS = Limits(build_time_s=math.inf)


def load_untrusted(
    path_or_bytes: str | os.PathLike[str] | bytes,
    sess_options: SessionOptions | None = None,
    *,
    limits: Limits | None = None,
    **kwargs: Any,
) -> InferenceSession:
    """A session of a model from an untrusted source, within ``limits``.

    Other arguments are those of ``InferenceSession``. A model that exceeds a limit, or contains something that
    untrusted models may not, raises ``UntrustedRefusal``.
    """
    from sardonyx.session.session import InferenceSession

    return InferenceSession(path_or_bytes, sess_options, trust=UNTRUSTED, limits=limits, **kwargs)


def limits_of(options: SessionOptions) -> Limits | None:
    """The limits of a session's options; None if the model is trusted."""
    if options.trust == limits.TRUSTED:
        return None
    if options.trust != UNTRUSTED:
        raise InvalidArgument("unknown trust", expected=f"{limits.TRUSTED} or {UNTRUSTED}", got=options.trust)
    return options.limits


def refuse_options(asked: BuildOptions, providers: Iterator[str] | list[str]) -> None:
    """Refuse session options that are not allowed with an untrusted model."""
    if asked.save_path:
        raise forbidden("be saved", where="optimized_model_filepath", got=asked.save_path)
    if asked.external_folder or asked.external_files:
        raise forbidden("have external data", hint="give initializers by add_initializer")
    others = [name for name in providers if name != "CPUExecutionProvider"]
    if others:
        raise forbidden(
            "run on providers other than the CPU provider, which alone enforces limits", got=", ".join(others)
        )


def refuse_operators(graph: Graph) -> None:
    """Refuse custom operators, and operators that other libraries implement."""
    from sardonyx.ops import registry

    for node in graph.all_nodes():
        found = registry.find(node.domain, node.op_type)
        if found is not None and found.custom is not None:
            raise forbidden("use custom operators", where=node.label, got=f"domain {node.domain!r}")
        if node.op_type in UNBOUNDED_OPERATORS:
            raise forbidden(UNBOUNDED_OPERATORS[node.op_type], where=node.label)


def warm_up() -> None:
    """Load and compile what every model needs, before a model's time starts to count. Nothing is written to a cache."""
    from sardonyx import knobs
    from sardonyx.normalize import run as _normalize
    from sardonyx.ops import registry
    from sardonyx.optimize import pipelines as _pipelines
    from sardonyx.session import build as _build
    from sardonyx.session.cpu_options import NONE

    assert _normalize and _pipelines and _build
    registry.find("", "Identity")
    if knobs.CPU.get() != NONE:
        with limits.in_force(Budget(_ENDLESS, time_limit="build_time_s")):
            _warm_up_cpu()


def _warm_up_cpu() -> None:
    from sardonyx.providers.cpu import CpuProvider

    if CpuProvider().probe() is None:
        from sardonyx.providers.cpu import compile as _compile
        from sardonyx.providers.cpu import dynamic_partition as _partition
        from sardonyx.providers.cpu.codegen import compiler as _compiler
        from sardonyx.providers.cpu.runtime import team

        assert _compile and _compiler and _partition
        for make in team.natives():
            make()


@contextmanager
def limited_run(bounds: Limits, held_nbytes: int, context: RunContext) -> Iterator[None]:
    """Apply the limits to one run, which starts with ``held_nbytes`` of memory held."""
    budget = Budget(bounds, time_limit="run_time_s")
    budget.held_nbytes += held_nbytes
    context.bound(budget)
    with limits.in_force(budget):
        yield
