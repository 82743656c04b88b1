"""Nodes against onnx's operator schemas: arity, attribute names and kinds, required attributes.

Operators that onnx does not know (removed experimental ones, com.microsoft, custom domains) are accepted here, and
refused later if nothing implements them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import onnx
from onnx import AttributeProto, defs

from sardonyx.errors import InvalidGraph
from sardonyx.ir.graph import Node
from sardonyx.model.protos import every_node, label
from sardonyx.model.types import MAX_RANK, text

_VARIADIC, _SINGLE = defs.OpSchema.FormalParameterOption.Variadic, defs.OpSchema.FormalParameterOption.Single


_EARLY = frozenset({"LayerNormalization", "MeanVarianceNormalization", "ThresholdedRelu"})
"""Operators that older models use before the opset that standardized them; onnxruntime runs them."""


class Slots(NamedTuple):
    """How many inputs or outputs an operator takes, and which are required."""

    least: int
    most: int
    single: tuple[bool, ...]
    others_single: bool
    """Whether the further ones of a variadic one are required."""


class Rule(NamedTuple):
    """The requirements of one version of an operator on its nodes."""

    version: int
    inputs: Slots
    outputs: Slots
    kinds: dict[str, int]
    required: frozenset[str]


def check_nodes(graph: onnx.GraphProto, opsets: dict[str, int]) -> None:
    """Raise InvalidGraph unless all nodes, including those of bodies, match their schemas. onnx's inference relies on
    it.
    """
    for node in every_node(graph.node):
        where = label(node)
        for name in (node.op_type, node.domain, node.name, node.overload, *(a.name for a in node.attribute)):
            text(name, where)
        check_node(node, where, opsets)


def check_node(node: onnx.NodeProto, where: str, opsets: dict[str, int]) -> None:
    """Raise InvalidGraph unless the node matches its operator's schema."""
    if not node.op_type:
        raise InvalidGraph("a node names no operator", where=where)
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = opsets.get(domain, 0)
    rule = rule_of(domain, node.op_type, version)
    if rule is None:
        if domain in opsets and node.op_type not in _EARLY and rule_of(domain, node.op_type, 0) is not None:
            raise InvalidGraph("the operator is newer than the opset that the model imports", where=where, got=version)
        return
    _check_slots(node.input, rule.inputs, "input", where, rule.version)
    _check_slots(node.output, rule.outputs, "output", where, rule.version)
    missing = rule.required
    for a in node.attribute:
        kind = rule.kinds.get(a.name)
        if kind is None:
            if not is_internal(a.name):
                raise InvalidGraph(
                    f"unrecognized attribute {a.name!r}",
                    where=where,
                    expected=f"one of {sorted(rule.kinds)} (version {rule.version} of the operator)",
                )
        elif a.type and a.type != kind:
            raise InvalidGraph(
                f"attribute {a.name!r} is of the wrong kind",
                where=where,
                expected=AttributeProto.AttributeType.Name(kind),
                got=_kind_name(a.type),
            )
        else:
            missing = missing - {a.name}
    if missing:
        raise InvalidGraph(f"required attribute {min(missing)!r} is missing", where=where)
    if node.op_type == "Constant" and len(node.attribute) != 1:
        raise InvalidGraph("a Constant has exactly one value", where=where, got=[a.name for a in node.attribute])
    if node.op_type == "Transpose" and not domain:
        _check_permutation(node, where)
    if node.op_type == "Split" and not domain:
        _check_parts(node, where)


def _check_permutation(node: onnx.NodeProto, where: str) -> None:
    for a in node.attribute:
        if a.name == "perm" and (len(a.ints) > MAX_RANK or sorted(a.ints) != list(range(len(a.ints)))):
            raise InvalidGraph("perm is not a permutation of the axes", where=where, got=list(a.ints[:MAX_RANK]))


def _check_parts(node: onnx.NodeProto, where: str) -> None:
    for a in node.attribute:
        if a.name == "num_outputs" and a.i != len(node.output):
            raise InvalidGraph(
                "num_outputs differs from the number of outputs", where=where, expected=len(node.output), got=a.i
            )


def is_internal(attribute: str) -> bool:
    """Whether an attribute has a name that operators never use and tools may write; onnx ignores these."""
    return attribute.startswith("__")


def check_bodies(node: Node, where: str, opsets: dict[str, int]) -> None:
    """Raise InvalidGraph unless the subgraphs of a control-flow node match its inputs and outputs."""
    if node.domain:
        return
    given, wanted = len(node.inputs), len(node.outputs)
    batched = node.op_type == "Scan" and opsets.get("", 0) == 8
    for key, body in node.subgraphs():
        takes, gives = len(body.inputs), len(body.outputs)
        if node.op_type == "If":
            fits = takes == 0 and gives == wanted
        elif node.op_type == "Loop":
            fits = takes == given and gives >= max(given - 2, wanted) + 1
        else:
            fits = takes == given - batched and gives == wanted
        if not fits:
            raise InvalidGraph(
                f"{key} does not fit a node of {given} inputs and {wanted} outputs",
                where=where,
                got=f"it takes {takes} inputs and gives {gives} outputs",
            )
        if node.op_type == "If":
            continue
        for passed, taken in zip(node.inputs[batched:], body.inputs, strict=False):
            if passed is not None and None is not passed.dtype is not taken.dtype is not None:
                raise InvalidGraph(
                    f"{key} takes {taken.name!r} with a type other than that of the value passed",
                    where=where,
                    expected=passed.type,
                    got=taken.type,
                )
    if node.op_type == "Scan":
        _check_scan(node, where, given - batched, wanted)
    if node.op_type == "If":
        for made in zip(*(body.outputs for _, body in node.subgraphs()), strict=True):
            if len({v.dtype for v in made} - {None}) > 1:
                raise InvalidGraph(
                    "the branches of an If give values of different types", where=where, got=[v.type for v in made]
                )


def _check_scan(node: Node, where: str, given: int, wanted: int) -> None:
    """Check the entries for scan inputs and outputs; opset 8 calls the directions of the inputs ``directions``."""
    scanned = node.attrs.get("num_scan_inputs", 0)
    named = {"input": ("scan_input_axes", "scan_input_directions", "directions"),
             "output": ("scan_output_axes", "scan_output_directions")}  # fmt: skip
    for kind, count in (("input", scanned), ("output", wanted - (given - scanned))):
        for name in named[kind]:
            values = node.attrs.get(name)
            if values and len(values) != count:
                raise InvalidGraph(
                    f"{name} has not one entry for each scan {kind}", where=where, expected=count, got=len(values)
                )
            if values and name.endswith("directions") and not {0, 1}.issuperset(values):
                raise InvalidGraph(f"{name} must be 0 or 1", where=where, got=list(values[:8]))


def _check_slots(names: Sequence[str], slots: Slots, what: str, where: str, version: int) -> None:
    if not slots.least <= len(names) <= slots.most:
        raise InvalidGraph(
            f"wrong number of {what}s",
            where=where,
            expected=f"{slots.least} to {slots.most} (version {version} of the operator)",
            got=len(names),
        )
    if "" in names:
        for i, name in enumerate(names):
            if not name and (slots.single[i] if i < len(slots.single) else slots.others_single):
                raise InvalidGraph(f"{what} {i} may not be left out", where=where)


@lru_cache(maxsize=4096)
def rule_of(domain: str, op_type: str, version: int) -> Rule | None:
    """The rule of an operator at an opset (0: the newest); None if onnx has no operator of that name."""
    try:
        schema = defs.get_schema(op_type, version, domain) if version else defs.get_schema(op_type, domain=domain)
    except (defs.SchemaError, TypeError):
        return None
    return Rule(
        schema.since_version,
        _slots(schema.min_input, schema.max_input, schema.inputs, others_single=True),
        _slots(schema.min_output, schema.max_output, schema.outputs, others_single=False),
        {name: int(a.type) for name, a in schema.attributes.items()},  # type: ignore[call-overload]
        frozenset(name for name, a in schema.attributes.items() if a.required),
    )


def _slots(least: int, most: int, formals: Sequence[defs.OpSchema.FormalParameter], *, others_single: bool) -> Slots:
    return Slots(least, most, tuple(f.option == _SINGLE for f in formals if f.option != _VARIADIC), others_single)


def _kind_name(kind: int) -> str:
    try:
        return str(AttributeProto.AttributeType.Name(kind))
    except ValueError:
        return f"kind {kind}"
