"""What the rules of a diagnosis look at: the profile, the session that it is of, and what surrounds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.forks import cached_property
from sardonyx.profile.environment import Environment
from sardonyx.profile.records import KernelUse, Profile

if TYPE_CHECKING:
    from sardonyx.ir.graph import Graph, Node, Value
    from sardonyx.session.explain import Explanation
    from sardonyx.session.options import SessionOptions
    from sardonyx.session.session import InferenceSession

PRODUCTS = frozenset((
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "ConvTransposeInteger", "Gemm", "GRU", "LSTM", "MatMul",
    "MatMulInteger", "RNN",
))  # fmt: skip
"""Operators whose time is arithmetic on weights."""


class Facts:
    """One diagnosis."""

    def __init__(
        self,
        profile: Profile,
        session: InferenceSession,
        environment: Environment,
        providers: Sequence[str],
        feeds: Mapping[str, Any],
        disturbances: Sequence[str] = (),
    ) -> None:
        """``providers`` are those that were asked for; ``feeds`` may be empty; ``disturbances`` say what else kept the
        CPUs busy while the profile was made.
        """
        self.profile, self.session, self.environment = profile, session, environment
        self.providers, self.feeds = tuple(providers), feeds
        self.disturbances = tuple(disturbances)

    @property
    def options(self) -> SessionOptions:
        return self.session.get_session_options()

    @property
    def asked_threads(self) -> int:
        """0 where the engine decides."""
        return int(self.profile.settings.get("asked_threads", self.options.intra_op_num_threads))

    @cached_property
    def explanation(self) -> Explanation:
        return self.session.explain()

    @cached_property
    def graph(self) -> Graph:
        """The optimized graph."""
        return self.session._sess.engine.model.graph

    @cached_property
    def nodes(self) -> list[Node]:
        """All nodes, those of bodies included."""
        return list(self.graph.all_nodes())

    @cached_property
    def weights(self) -> list[Value]:
        """Constants of the optimized graph, those of bodies included."""
        found: dict[Value, None] = {}
        for node in self.nodes:
            found.update(dict.fromkeys(v for v in node.inputs if v is not None and v.const is not None))
        return list(found)

    @cached_property
    def weights_nbytes(self) -> int:
        return sum(v.const.nbytes for v in self.weights if v.const is not None)

    def seconds_of(self, names: frozenset[str] | set[str]) -> float:
        """Time of a run in kernels that compute any of these nodes, and in these nodes on numpy."""
        kernels = sum(k.seconds for k in self.profile.kernels if not names.isdisjoint(k.nodes))
        return kernels + sum(n.seconds for n in self.profile.nodes if n.engine == "reference" and n.name in names)

    def share(self, seconds: float) -> float:
        return min(1.0, seconds / self.profile.seconds) if self.profile.seconds else 0.0

    def movers(self) -> Iterator[KernelUse]:
        """Kernels that only move elements."""
        return (k for k in self.profile.kernels if not k.flops and k.nbytes)
