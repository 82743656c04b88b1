"""What is in a model's file, and what would become of it here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.console import hanging, plain, show
from sardonyx.cli.options import AsJson, Dimensions, ModelPath, Shapes, dimensions, shapes

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """
sardonyx inspect model.onnx
sardonyx inspect model.onnx --dim batch=8 --dim sequence=256
sardonyx inspect model.onnx --graph | less
sardonyx inspect model.onnx --json
"""


def command(
    model: ModelPath,
    graph: Annotated[
        bool, typer.Option("--graph", help="Print the nodes too, one a line, with inferred types.")
    ] = False,
    dims: Dimensions = None,
    shape: Shapes = None,
    as_json: AsJson = False,
) -> None:
    """Describe a model: inputs and outputs, weights, operations, operators, and risks. Nothing is compiled or run.

    Operations are counted for the sizes of --dim and --shape, and for usual ones where none are given.
    """
    from sardonyx.inspection.inspect import inspect_model
    from sardonyx.inspection.text import inspection_text

    found = inspect_model(model, dimensions=dimensions(dims), shapes=shapes(shape))

    def text(out: Console) -> None:
        out.print(hanging(inspection_text(found), out.width, 14), soft_wrap=True)
        if graph:
            out.print(_nodes(model), soft_wrap=True)

    show({**plain(found), "graph": _nodes(model).splitlines() if graph else None}, text, as_json)


def _nodes(model: ModelPath) -> str:
    from sardonyx.inspection.text import graph_text
    from sardonyx.model.load import load

    return graph_text(load(model).graph)
