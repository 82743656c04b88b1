"""``sardonyx run``."""

from __future__ import annotations

import io
import math
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli import FAILED, GOOD
from sardonyx.cli.console import seconds_text, show, table
from sardonyx.cli.inputs import feeds_of, sizes_were_assumed
from sardonyx.cli.options import (
    AsJson,
    Dimensions,
    InputFiles,
    ModelPath,
    Precision,
    Providers,
    Seed,
    Shapes,
    Threads,
    require_writable,
)
from sardonyx.cli.progress import progress
from sardonyx.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.bench.answers import Agreement

EXAMPLES = """
sardonyx run model.onnx
sardonyx run model.onnx --input photo.jpg --output answers.npz
sardonyx run model.onnx --input ids=ids.npy --input mask=mask.npy
sardonyx run model.onnx --dim batch=4 --check
sardonyx run model.onnx --check --with reference --tolerance 1e-3
"""
SHOWN = 8
"""Elements of an output that are printed."""
FORMATS = (".npz", ".npy")


def command(
    model: ModelPath,
    inputs: InputFiles = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the outputs: .npz, or .npy if there is one.", show_default=False),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare the outputs with another engine's.")] = False,
    with_: Annotated[
        str, typer.Option("--with", metavar="onnxruntime|reference", help="The engine of --check.", show_default=False)
    ] = "",
    tolerance: Annotated[
        float | None,
        typer.Option(metavar="ERROR", min=0.0, help="Relative error that --check allows.", show_default=False),
    ] = None,
    provider: Providers = None,
    threads: Threads = 0,
    precision: Precision = "highest",
    dim: Dimensions = None,
    shape: Shapes = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Run a model once: on inputs from files, or on generated ones.

    --check compares with onnxruntime without its optimizer, or where that is missing with the reference provider
    (numpy, node by node). The status is 1 if an output differs by more than rounding explains, or than --tolerance.
    """
    from sardonyx.bench.answers import checked, checker_name, require_checker

    if output is not None and output.suffix not in FORMATS:
        raise InvalidArgument("outputs are saved as .npz or .npy", got=str(output))
    if output is not None:
        require_writable(output)
    feeds, statements = feeds_of(model, inputs, dim, shape, seed)
    if with_:
        require_checker(with_)
    with progress() as step, sizes_were_assumed(statements):
        step(f"loading {model.name}")
        start = time.perf_counter()
        session = _session(model, provider, threads, precision)
        loaded = time.perf_counter()
        step("running")
        values = session.run(None, feeds)
        ran = time.perf_counter()
        outputs = dict(zip((o.name for o in session.get_outputs()), values, strict=True))
        found: list[Agreement] | None = None
        engine = with_ or checker_name()
        if check or with_:
            step(f"checking with {engine}")
            found = checked(engine, model, feeds, outputs, tolerance)
    if output is not None:
        _save(output, outputs)
    times = {"load_s": loaded - start, "run_s": ran - loaded}
    result = {
        "model": model,
        "statements": statements,
        "inputs": {name: _described(value) for name, value in feeds.items()},
        "outputs": {name: _described(value) for name, value in outputs.items()},
        **times,
        "saved": output,
        "check": None if found is None else {"with": engine, "outputs": found},
    }

    def text(out: Console) -> None:
        for statement in statements:
            out.print(statement)
        out.print(f"loaded in {seconds_text(times['load_s'])}, first run {seconds_text(times['run_s'])}")
        out.print()
        out.print(_table(outputs))
        if output is not None:
            out.print(f"saved to {output}", soft_wrap=True)
        if found is not None:
            out.print()
            for each in found:
                out.print(_verdict(each, engine))

    show(result, text, as_json)
    return FAILED if found is not None and any(each.difference for each in found) else GOOD


def _session(model: Path, provider: list[str] | None, threads: int, precision: str) -> Any:
    import sardonyx

    available = sardonyx.get_available_providers()
    if unknown := sorted({*(provider or ())} - {*available}):
        raise InvalidArgument("no such provider on this machine", expected=available, got=unknown)
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    return sardonyx.InferenceSession(str(model), options, providers=provider or available, precision=precision)


def _described(value: Any) -> dict[str, Any]:
    import numpy as np

    if not isinstance(value, np.ndarray):
        return {"type": type(value).__name__, "length": len(value) if hasattr(value, "__len__") else None}
    found: dict[str, Any] = {"type": value.dtype.name, "shape": list(value.shape)}
    if value.dtype != object and value.size and value.dtype.kind != "c":
        wide = value.astype(np.float64)
        found |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
    if value.size <= SHOWN:
        found["values"] = value.tolist() if value.dtype.kind != "c" else list(map(str, value.ravel()))
    return found


def _table(outputs: Mapping[str, Any]) -> Any:
    rows = []
    for name, value in outputs.items():
        about = _described(value)
        size = "x".join(map(str, about["shape"])) if "shape" in about else str(about["length"])
        figures = [_figure(about[key]) if key in about else "" for key in ("min", "max", "mean")]
        rows.append((name, about["type"], size or "scalar", *figures, _first(value)))
    return table(("output", "type", "shape", ">min", ">max", ">mean", "first"), rows)


def _first(value: Any) -> str:
    """Some elements."""
    import numpy as np

    if isinstance(value, np.ndarray) and value.ndim:
        return ", ".join(map(_first, value.ravel()[:3].tolist()))
    if isinstance(value, np.ndarray):
        return _first(value.item())
    if isinstance(value, dict):
        shown = ", ".join(f"{key}: {_first(item)}" for key, item in list(value.items())[:3])
        return f"{{{shown}{', ...' if len(value) > 3 else ''}}}"
    if isinstance(value, (list, tuple)):
        return _first(value[0]) if value else ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)[:24]


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _verdict(each: Agreement, engine: str) -> str:
    if each.difference is not None:
        return f"{each.name} DIFFERS from {engine}'s: {each.difference}"
    apart = f" (relative error {each.error:.1e})" if math.isfinite(each.error) and each.error else ""
    moved = "" if each.rounding is None else f"; rounding of the inputs alone moves it by {each.rounding:.1e}"
    return f"{each.name} agrees with {engine}'s{apart}{moved}"


def _save(path: Path, outputs: Mapping[str, Any]) -> None:
    """Write the outputs whole or not at all."""
    import numpy as np

    from sardonyx import writing

    if odd := [name for name, value in outputs.items() if not isinstance(value, np.ndarray)]:
        raise InvalidArgument("only tensors can be saved", got=odd)
    arrays = {name: value.astype(str) if value.dtype == object else value for name, value in outputs.items()}
    file = io.BytesIO()
    if path.suffix == ".npy":
        if len(arrays) != 1:
            raise InvalidArgument("an .npy holds one output", expected="a file that ends with .npz", got=list(arrays))
        np.save(file, next(iter(arrays.values())), allow_pickle=False)
    else:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                entry = io.BytesIO()
                np.save(entry, array, allow_pickle=False)
                archive.writestr(f"{name}.npy", entry.getvalue())
    writing.write_whole(str(path), [file.getbuffer()])
