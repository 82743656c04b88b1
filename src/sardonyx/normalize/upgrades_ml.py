"""ai.onnx.ml: LabelEncoder. The tree ensembles that TreeEnsemble replaced are implemented directly."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.registry import Result, upgrade


@upgrade("LabelEncoder", to=2, domain="ai.onnx.ml")
def label_encoder_classes(op: Builder, node: Node) -> Result:
    """One list of strings served both directions: string to its last index, and index to string."""
    classes, dtype = required_attribute(node, "classes_strings"), required_input(node, 0).dtype
    if dtype is None:
        raise InvalidGraph(
            "the type of LabelEncoder's input is not known", where=node.label, expected="string or int64"
        )
    strings, numbers = ("keys", "values") if dtype is dtypes.string else ("values", "keys")
    del node.attrs["classes_strings"]
    places = range(len(classes))
    node.attrs |= {f"{strings}_strings": list(reversed(classes)), f"{numbers}_int64s": list(reversed(places))}
    return None
