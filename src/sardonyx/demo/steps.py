"""The steps of the demo, in their order: each is a method that does the work and returns what it found."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.demo import HELD_OUT, MODEL
from sardonyx.demo.records import Loaded, Optimized, Placed, Read
from sardonyx.errors import Fail
from sardonyx.writing import write_together

if TYPE_CHECKING:
    from sardonyx.bench.results import Result
    from sardonyx.quantization.budget.report import Report
    from sardonyx.report.records import ReportData

CALIBRATING, PARTS = 100, 10
"""Images that calibrate the quantized model, in so many runs; the others judge it."""
MAX_LOSS = 0.005
"""Of the accuracy, that quantization may cost."""
SHOWN = 4
BATCHES = (1, 8, 32)
Step = Callable[[str], None]
Array = np.ndarray[Any, Any]


class Demo:
    """``folder`` gets the model, what is made of it, and the report."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / MODEL.name
        is_new = not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_together([(str(folder / each.name), [each.read_bytes()]) for each in (MODEL, HELD_OUT)])
        except OSError as error:
            if is_new:
                with suppress(OSError):
                    folder.rmdir()
            raise Fail(f"the demo cannot write there ({error.strerror})", where=str(folder)) from None
        with np.load(HELD_OUT) as file:
            self.images: Array = file["images"]
            self.labels: Array = file["labels"]

    def load(self) -> Loaded:
        import sardonyx

        start = time.perf_counter()
        self._session = sardonyx.InferenceSession(str(self.model))
        load_s = time.perf_counter() - start
        inputs, outputs = (
            {each.name: f"{each.type} [{', '.join(map(str, each.shape))}]" for each in ends}
            for ends in (self._session.get_inputs(), self._session.get_outputs())
        )
        return Loaded(str(self.model), self.model.stat().st_size, load_s, inputs, outputs)

    def read(self) -> Read:
        """All held-out images."""
        label, probability = self._session.run(["label", "probability"], {"image": self.images})
        is_right = label == self.labels
        same = None
        if find_spec("onnxruntime") is not None:
            peer: Any = importlib.import_module("onnxruntime")
            other = peer.InferenceSession(str(self.model), providers=["CPUExecutionProvider"])
            same = bool(np.array_equal(other.run(["label"], {"image": self.images})[0], label))
        wrong = np.flatnonzero(~is_right)
        self._read = Read(
            int(is_right.sum()),
            len(label),
            self.images[:SHOWN],
            tuple(label[:SHOWN].tolist()),
            tuple(probability.max(1)[:SHOWN].tolist()),
            tuple((int(label[i]), int(self.labels[i])) for i in wrong),
            same,
        )
        return self._read

    def optimize(self) -> Optimized:
        """The optimized model, saved and run."""
        import sardonyx

        result = sardonyx.optimize_model(str(self.model))
        path = self.folder / "digits.optimized.onnx"
        result.save(path)
        label = sardonyx.InferenceSession(str(path)).run(["label"], {"image": self.images})[0]
        expected = self._session.run(["label"], {"image": self.images})[0]
        return Optimized(
            str(path), *result.node_counts, dict(result.report.count()), bool(np.array_equal(label, expected))
        )

    def explain(self) -> Placed:
        found = self._session.explain()
        return Placed(len(found.placements), found.counts())

    def quantize(self) -> Report:
        """int8, with the accuracy on images that neither training nor calibration saw within ``MAX_LOSS``; no model is
        written if none wins its race against the float model.
        """
        from sardonyx.quantization import Budget, quantize_static
        from sardonyx.quantization.accuracy import ShareRight

        calibration = [{"image": part} for part in np.array_split(self.images[:CALIBRATING], PARTS)]
        judged = [{"image": part} for part in np.array_split(self.images[CALIBRATING:], PARTS)]
        budget = Budget(max_loss=MAX_LOSS, evaluation=judged)
        metric = ShareRight(self.labels[CALIBRATING:], "label")
        path = self.folder / "digits.int8.onnx"
        path.unlink(missing_ok=True)
        found = quantize_static(self.model, path, calibration, budget=budget, metric=metric)
        assert found is not None
        self._quantized = found
        return found

    def benchmark(self, seconds: float, step: Step = lambda what: None) -> Result:
        """Beside the engines that are installed, each in a process of its own."""
        from sardonyx.bench.api import benchmark

        self._result = benchmark(self.model, batches=BATCHES, seconds=seconds, starts=2, warm_s=2.0, step=step)
        return self._result

    def report(self) -> tuple[Path, ReportData]:
        """The page, with what the steps before found."""
        from sardonyx.report.adapt import measurements_of, tables_of, verdict_of
        from sardonyx.report.records import Table
        from sardonyx.report.write import write_report

        read, chosen = self._read, self._quantized.chosen
        nbytes, unseen = self.model.stat().st_size, f"the {read.count - CALIBRATING} that did not calibrate int8"
        rows: list[tuple[str, str, int, float | None]] = [
            ("float", f"all {read.count}", nbytes, read.share),
            ("float", unseen, nbytes, self._quantized.float_score.metric),
        ]
        if chosen is not None:
            rows.append(("int8", unseen, chosen.nbytes, chosen.metric))
        accuracy = Table(
            "Accuracy",
            ("model", "digits", "bytes", "share read right"),
            tuple(rows),
            f"{read.count} handwritten digits that were held out of training.",
        )
        path = self.folder / "report.html"
        data = write_report(
            str(self.model),
            path,
            feeds={"image": self.images[:1]},
            title="Handwritten digits",
            measurements=measurements_of(self._result),
            verdict=verdict_of(self._result),
            tables=[accuracy, *tables_of(self._quantized)],
        )
        return path, data
