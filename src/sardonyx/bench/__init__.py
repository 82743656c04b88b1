"""How fast a model runs, beside other engines and beside itself: ``benchmark`` and what it is made of.

Each contestant opens the model in a process of its own (``process``, ``worker``, ``engines``). All of them run in every
round, in an order that rotates, on the same cores (``rounds``); ``statistics`` says whether a difference is real.
``machine`` says when the machine is too busy to measure, ``history`` what has become slower since an earlier run.

    from sardonyx import bench
    result = bench.benchmark("model.onnx", peers=["onnxruntime"])
    print(result.comparisons[0].sentence)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.lazy import attributes

_HOMES = {
    "benchmark": "api",
    "Contestant": "engines",
    **dict.fromkeys(("Comparison", "Result", "Sweep", "Timing"), "results"),
    **dict.fromkeys(("Ratio", "paired_ratio", "ratio_of_medians"), "statistics"),
    **dict.fromkeys(("append_history", "read_results", "regressions"), "history"),
    "generate_inputs": "inputs",
}

__all__ = [*_HOMES]  # noqa: PLE0604

if TYPE_CHECKING:
    from sardonyx.bench.api import benchmark as benchmark
    from sardonyx.bench.engines import Contestant as Contestant
    from sardonyx.bench.history import append_history as append_history
    from sardonyx.bench.history import read_results as read_results
    from sardonyx.bench.history import regressions as regressions
    from sardonyx.bench.inputs import generate_inputs as generate_inputs
    from sardonyx.bench.results import Comparison as Comparison
    from sardonyx.bench.results import Result as Result
    from sardonyx.bench.results import Sweep as Sweep
    from sardonyx.bench.results import Timing as Timing
    from sardonyx.bench.statistics import Ratio as Ratio
    from sardonyx.bench.statistics import paired_ratio as paired_ratio
    from sardonyx.bench.statistics import ratio_of_medians as ratio_of_medians

__getattr__, __dir__ = attributes(__name__, _HOMES)
