"""Inspections and graphs as text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from sardonyx.inspection.records import Inspection, Port
from sardonyx.ir.graph import Graph, Value

LISTED = 3


def inspection_text(found: Inspection) -> str:
    """A report of some twenty lines."""
    return "\n".join(_lines(found))


def _lines(found: Inspection) -> Iterator[str]:
    opsets = ", ".join(f"{name or 'ai.onnx'} {version}" for name, version in found.opsets.items())
    yield f"{os.path.basename(found.path) if found.path else 'model'}: {amount(found.nbytes)}"
    yield f"  made by     {found.producer or 'nobody that it names'}; IR {found.ir_version}; {opsets}"
    for title, ports in (("inputs", found.inputs), ("outputs", found.outputs)):
        for i, port in enumerate(ports):
            yield f"  {title if i == 0 else '':<11} {port_text(port)}"
    if found.dimensions:
        yield f"  symbolic    {', '.join(found.dimensions)}"
    shares = ", ".join(f"{share.type} {amount(share.nbytes)}" for share in found.precisions)
    yield f"  parameters  {found.parameters:,} ({shares or 'none'})"
    yield f"  operations  {scaled(found.flops)}FLOP a run{_sizes(found)}"
    yield f"  nodes       {found.nodes}: {counts(found.operators)}"
    for i, risk in enumerate(found.risks):
        named = f" ({', '.join(risk.nodes[:LISTED])}{more(len(risk.nodes) - LISTED)})" if risk.nodes else ""
        yield f"  {'risks' if i == 0 else '':<11} {risk.what}{named}"
    if not found.risks:
        yield "  risks       none found"


def _sizes(found: Inspection) -> str:
    nodes = "1 node, whose" if found.uncounted == 1 else f"{found.uncounted} nodes, whose"
    unknown = f", without {nodes} sizes are not known before a run" if found.uncounted else ""
    return unknown + "".join(f"\n{'':14}{statement}" for statement in found.sizes)


def more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def counts(operators: Mapping[str, int], listed: int = 12) -> str:
    shown = ", ".join(f"{name} {count}" for name, count in list(operators.items())[:listed])
    return shown + more(len(operators) - listed)


def port_text(port: Port) -> str:
    if port.shape is not None:
        return f"{port.name}: {port.type} [{', '.join('?' if d is None else str(d) for d in port.shape)}]"
    return f"{port.name}: {port.type}{' of any shape' if port.type.startswith('tensor(') else ''}"


def amount(nbytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def duration(seconds: float, micro: str = "us") -> str:
    """A time for people, in three digits; ``micro`` is what microseconds are called."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} {micro}"


def scaled(number: float) -> str:
    """A number with a prefix: ``1.53 G``."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "


def graph_text(graph: Graph, indent: str = "") -> str:
    """The nodes in order, one line each, bodies below their node."""
    return "\n".join(_graph_lines(graph, indent))


def _graph_lines(graph: Graph, indent: str) -> Iterator[str]:
    for i, node in enumerate(graph.nodes):
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        inputs = ", ".join("" if v is None else _named(v) for v in node.inputs)
        outputs = ", ".join(f"{v.name}: {v.type}" if v.type is not None else v.name for v in node.outputs)
        yield f"{indent}{i:>5}  {outputs} = {name}({inputs})"
        for key, sub in node.subgraphs():
            yield f"{indent}       {key}:"
            yield from _graph_lines(sub, indent + "       ")


def _named(value: Value) -> str:
    return f"{value.name}: {value.type} constant" if value.is_const else value.name
