"""Normalizes a model: every operator in its newest version, operators of other domains as bodies over ai.onnx."""

from __future__ import annotations

import importlib
from functools import cache

from sardonyx.errors import InvalidGraph, Reporting
from sardonyx.ir import shape as shapes
from sardonyx.ir import types
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.model.operands import check_types
from sardonyx.normalize.gradient import expand_gradients
from sardonyx.normalize.opsets import ML, lowest_opset, newest_version
from sardonyx.normalize.registry import EXPANSIONS, Result, Rewrite, steps_of
from sardonyx.ops import registry
from sardonyx.ops.infer import infer_node

__all__ = ["lowest_opset", "normalize", "raise_opset", "unify_opsets"]

_BODIES = {"": ("experimental", "microsoft"), "com.microsoft": ("microsoft",), "com.ms.internal.nhwc": ("microsoft",)}


def normalize(model: Model) -> None:
    """Rewrite every node of ``model`` in place; unknown operators are left unchanged."""
    newest = {"": newest_version(""), ML: newest_version(ML)}
    _Rewriter(model, newest).graph(model.graph)
    expand_gradients(model.graph)
    _warn_of_stale_shapes(model)
    left = {node.domain for node in model.graph.all_nodes()}
    expanded = {domain for domain, _ in EXPANSIONS if domain}
    for domain in [d for d in model.opsets if d in expanded and d not in left]:
        del model.opsets[domain]
    for domain, version in newest.items():
        if domain in model.opsets or domain in left:
            model.opsets[domain] = max(version, model.opsets.get(domain, 0))


def unify_opsets(model: Model) -> None:
    """Upgrade a model whose nodes are written for several opsets to one of them; other models are unchanged."""
    if any(node.opset is not None for node in model.graph.all_nodes()):
        written = dict(model.opsets)
        normalize(model)
        for domain in {"", ML} & model.opsets.keys():
            model.opsets[domain] = lowest_opset(model, domain, at_least=written.get(domain, 1))


def raise_opset(model: Model, version: int) -> None:
    """Write the nodes of ai.onnx for ``version``, unless the model imports a newer one. Operators of other domains stay
    as they are.
    """
    if model.opsets.get("", 1) < version:
        _Raiser(model, {"": version}).graph(model.graph)
        model.opsets[""] = version


def _warn_of_stale_shapes(model: Model) -> None:
    """Warn once if the file states shapes that differ from inferred ones."""
    stated, model.stated_shapes = model.stated_shapes, {}
    stale = [
        (value.name, stated[value.name], value.type)
        for node in model.graph.nodes
        for value in node.outputs
        if value.name in stated and shapes.differ(value.shape, stated[value.name].shape)
    ]
    if stale:
        name, said, found = stale[0]
        import logging  # 3 ms of a start that logs nothing

        logging.getLogger("sardonyx").warning(
            "%sthe model states %s for %r, its operators produce %s%s: stated shapes are not used",
            f"{model.path}: " if model.path else "",
            said,
            name,
            found,
            f" (and {len(stale) - 1} more)" if len(stale) > 1 else "",
        )


class _Rewriter:
    """One pass over a model, outer graphs first, so that a rewrite sees the types of its inputs."""

    def __init__(self, model: Model, newest: dict[str, int]) -> None:
        self.newest = newest
        self.written = {d: model.opsets.get(d, 1 if model.ir_version < 3 else v) for d, v in newest.items()}
        self.final: set[Node] = set()

    def graph(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node not in self.final:
                if node.domain == "ai.onnx":
                    node.domain = ""
                stem = next((out.name for out in node.outputs if out.name), node.name)
                version, node.opset = node.opset or self.written.get(node.domain, 0), None
                with Reporting("normalize", node):
                    self.upgrade(node, version, stem)
                    if node in self.final and node.domain in self.newest:
                        check_types(node, self.newest[node.domain])

    def upgrade(self, node: Node, version: int, prefix: str) -> None:
        """Rewrite ``node``, written for ``version``, and the resulting nodes, until no rewrite applies."""
        self._refuse_removed(node, version)
        for to, rewrite in self._steps(node, version):
            op = Builder(_home(node), node, prefix=prefix, origin=node.origin)
            result = rewrite(op, node)
            if result is not None:
                _replace(op, node, result)
            for made in op.made:
                self.upgrade(made, to, made.name)
            if result is not None:
                return
        self.final.add(node)
        if node.domain and (meaning := registry.find(node.domain, node.op_type)) and meaning.custom:
            meaning.custom.check(node)
        for _, sub in node.subgraphs():
            self.graph(sub)
        infer_node(node)

    def _steps(self, node: Node, version: int) -> list[tuple[int, Rewrite]]:
        key = node.domain, node.op_type
        if steps := steps_of(*key):
            return [step for step in steps if step[0] > version]
        if node.domain == ML or (node.domain == "" and _schema(node.op_type, self.newest[""], "") is not None):
            return []
        for package in _BODIES.get(node.domain, ()):
            if key not in EXPANSIONS:
                importlib.import_module(f"sardonyx.normalize.{package}")
        return [(self.newest[""], EXPANSIONS[key])] if key in EXPANSIONS else []

    def _refuse_removed(self, node: Node, version: int) -> None:
        """Refuse an operator that its opset had removed already, as onnxruntime does."""
        if node.domain:
            return
        now, then = (_schema(node.op_type, v, "") for v in (self.newest[""], version))
        if now and now[1] and then and then[1]:
            raise InvalidGraph(
                f"{node.op_type} was removed from ai.onnx in opset {then[0]}",
                where=node.label,
                got=f"opset {version}",
                hint="import an older opset, or use the operator that replaced it",
            )


class _Raiser(_Rewriter):
    """Upgrades of ai.onnx up to one version, and no bodies."""

    def _steps(self, node: Node, version: int) -> list[tuple[int, Rewrite]]:
        return (
            [] if node.domain else [step for step in steps_of("", node.op_type) if version < step[0] <= self.newest[""]]
        )


def _home(node: Node) -> Graph:
    assert node.graph is not None, node.label
    return node.graph


def _replace(op: Builder, node: Node, result: Result) -> None:
    """Replace the node's outputs by ``result``, under the same names, and remove the node."""
    news = result if isinstance(result, tuple) else (result,)
    graph, renamed = op.graph, set[Value]()
    for i, old in enumerate(node.outputs):
        new = news[i] if i < len(news) else None
        if new is None:
            if not old.is_dead:
                raise InvalidGraph(f"output {i} of {node.op_type} is read, but is not defined", where=node.label)
            continue
        own = new.producer is not None and new.producer in op.made and new not in renamed and not new.is_output
        if not own and old.is_output:
            new, own = op.Identity(new), True
        if own:
            renamed.add(new)
            new.type = types.merge(old.type, new.type)
            new.doc, new.denotation = old.doc, old.denotation
        graph.replace_uses(old, new)
        if own:
            new.name = old.name
    graph.remove(node)


@cache
def _schema(op_type: str, version: int, domain: str) -> tuple[int, bool] | None:
    """(since, deprecated) of the operator at an opset; None if it does not exist there."""
    from onnx import defs

    try:
        schema = defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None
    return schema.since_version, schema.deprecated
