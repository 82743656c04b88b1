"""``sardonyx quantize``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli import FAILED, GOOD
from sardonyx.cli.budget_text import decibels, print_budget
from sardonyx.cli.console import nbytes_text, seconds_text, show, table
from sardonyx.cli.options import AsJson, Dimensions, ModelPath, Seed, Shapes, dimensions, require_writable, shapes
from sardonyx.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.quantization.budget.report import Report
    from sardonyx.quantization.outcome import Outcome

EXAMPLES = """
sardonyx quantize model.onnx -o model.int8.onnx --data images/
sardonyx quantize model.onnx -o model.int8.onnx --data x=train.npz:x --per-channel
sardonyx quantize model.onnx -o model.int8.onnx --data images/ --budget 30
sardonyx quantize model.onnx -o model.int8.onnx --data calibration/ --evaluation x=test.npz:x --labels test.npz:y \
--budget 0.01
sardonyx quantize model.onnx -o model.int8.onnx --how dynamic
sardonyx quantize model.onnx -o model.int4.onnx --how weights --bits 4 --block-size 32
"""
DATA, WHAT, WEIGHTS, BUDGET = "Data", "What is quantized, and how", "Weights only", "Budget"
GENERATED = 16
"""Samples where no data are given."""


class How(str, Enum):
    static = "static"
    dynamic = "dynamic"
    weights = "weights"


class Format(str, Enum):
    qdq = "qdq"
    qoperator = "qoperator"


class Method(str, Enum):
    minmax = "minmax"
    entropy = "entropy"
    percentile = "percentile"
    distribution = "distribution"


class Type(str, Enum):
    int8 = "int8"
    uint8 = "uint8"
    int16 = "int16"
    uint16 = "uint16"
    int4 = "int4"
    uint4 = "uint4"


class Algorithm(str, Enum):
    default = "default"
    rtn = "rtn"
    kquant = "k-quant"
    hqq = "hqq"
    gptq = "gptq"


METHODS = {Method.minmax: "MinMax", Method.entropy: "Entropy", Method.percentile: "Percentile",
           Method.distribution: "Distribution"}  # fmt: skip
TYPES = {each: f"Q{'U' if each.value.startswith('u') else ''}Int{each.value.lstrip('uint')}" for each in Type}


def command(
    model: ModelPath,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of the quantized model.", show_default=False)
    ] = None,
    how: Annotated[
        How,
        typer.Option(
            metavar="METHOD",
            help="static: weights and activations to integers, by ranges measured on data; dynamic: activations while "
            "the model runs; weights: 4 or 8 bits in blocks, for language models.",
        ),
    ] = How.static,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PATH",
            help="Samples to calibrate on: a folder with a file or a folder for each, an .npz by inputs' names, an "
            ".npy, or FILE.npz:KEY. Random by default.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=0, help="At most so many samples; 0 for all.", rich_help_panel=DATA)
    ] = 256,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Samples of a run, where arrays are split.", rich_help_panel=DATA)
    ] = 1,
    evaluation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PATH",
            help="Samples to judge the result on; those of --data by default.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The right answers to the samples that judge, an .npy or FILE.npz:KEY, for the share of right "
            "answers.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            metavar="OUTPUT",
            help="The output with labels, or with scores whose largest counts; the first that fits by default.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            min=0.0,
            help="What accuracy to keep (--how static): the largest loss of the share of right answers, or without "
            "--labels the smallest signal to quantization noise ratio in dB, such as 30. Layers that cost more stay "
            "in float.",
            show_default=False,
            rich_help_panel=BUDGET,
        ),
    ] = None,
    even_if_slower: Annotated[
        bool,
        typer.Option(
            "--even-if-slower", help="Keep a model that is no faster than float here.", rich_help_panel=BUDGET
        ),
    ] = False,
    max_seconds: Annotated[
        float,
        typer.Option(metavar="S", min=0.0, help="When nothing new is tried any more.", rich_help_panel=BUDGET),
    ] = 1800.0,
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="qdq: QuantizeLinear and DequantizeLinear around operators; qoperator: operators of integers, for "
            "weights only those of com.microsoft. The usual one by default.",
            show_default=False,
            rich_help_panel=WHAT,
        ),
    ] = None,
    weight_type: Annotated[
        Type,
        typer.Option(
            "--weights",
            metavar="TYPE",
            help="Type of weights: int8, uint8, int16, uint16, int4 or uint4.",
            rich_help_panel=WHAT,
        ),
    ] = Type.int8,
    activation_type: Annotated[
        Type, typer.Option("--activations", metavar="TYPE", help="The same of activations.", rich_help_panel=WHAT)
    ] = Type.int8,
    per_channel: Annotated[
        bool, typer.Option("--per-channel", help="A scale for each channel of weights.", rich_help_panel=WHAT)
    ] = False,
    method: Annotated[
        Method,
        typer.Option(
            metavar="METHOD",
            help="How ranges follow from data: minmax, entropy, percentile or distribution.",
            rich_help_panel=WHAT,
        ),
    ] = Method.minmax,
    op_type: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPERATOR",
            help="Quantize operators of this type only; several times.",
            show_default=False,
            rich_help_panel=WHAT,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE", help="Leave this node in float; several times.", show_default=False, rich_help_panel=WHAT
        ),
    ] = None,
    bits: Annotated[int, typer.Option(metavar="2|4|8", help="Bits of a weight.", rich_help_panel=WEIGHTS)] = 4,
    block_size: Annotated[
        int, typer.Option(metavar="N", help="Weights that share a scale.", rich_help_panel=WEIGHTS)
    ] = 32,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="No zero points.", rich_help_panel=WEIGHTS)] = False,
    algorithm: Annotated[
        Algorithm,
        typer.Option(
            metavar="NAME",
            help="How weights are rounded: default, rtn, k-quant, hqq, or gptq, on data.",
            rich_help_panel=WEIGHTS,
        ),
    ] = Algorithm.default,
    external_data: Annotated[
        bool, typer.Option("--external-data", help="Write weights to a file of their own.")
    ] = False,
    dims: Dimensions = None,
    shape: Shapes = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Make a model of integers from a model of floats, and say what that costs and gains on this machine.

    The quantized model is compared with the float model on the samples, and raced against it. With --budget layers
    that lose accuracy or time stay in float. The status is 1 if no model meets the budget, of which none is written
    then, or if there was nothing to quantize.
    """
    from sardonyx.quantization.outcome import Baseline, quantized_operators

    if output is None:
        raise InvalidArgument("no file is named for the quantized model", hint="give --output FILE")
    if budget is not None and how is not How.static:
        raise InvalidArgument("--budget is for --how static", got=how.value)
    require_writable(output)
    given = _Data(model, batch, samples, seed, dimensions(dims), shapes(shape))
    if answers is not None and labels is None:
        raise InvalidArgument("--answers names the output that --labels are for", hint="give --labels FILE")
    calibration = given.read(data) if how is How.static or algorithm is Algorithm.gptq or data else None
    judged = given.read(evaluation) if evaluation or calibration is None else calibration
    metric = None if labels is None else _metric(labels, answers, given.is_cut)
    if labels is not None and given.is_cut:
        given.statements.append(f"The first {len(judged)} samples are judged, by the first labels; --samples 0: all.")
    baseline = Baseline(model, judged, metric)
    what = {
        "op_types_to_quantize": op_type, "nodes_to_exclude": exclude, "per_channel": per_channel,
        "weight_type": _type(weight_type), "use_external_data_format": external_data,
    }  # fmt: skip
    found: Report | None = None
    if how is How.static:
        found = _static(model, output, calibration, what, format_, activation_type, method, metric, _budget(
            budget, labels is not None, even_if_slower, max_seconds, judged))  # fmt: skip
    elif how is How.dynamic:
        from sardonyx.quantization import quantize_dynamic

        quantize_dynamic(model, output, **what)
    else:
        blocks = {"bits": bits, "block_size": block_size, "is_symmetric": symmetric, "nodes_to_exclude": exclude}
        config = _config(algorithm, format_, op_type, bits, block_size, symmetric, calibration)
        _weights(model, output, blocks, config, external_data)
    is_written = found is None or found.met
    is_quantized = is_written and quantized_operators(output) > 0
    compared = baseline.compare(output) if is_quantized else None
    facts = {
        "output": output if is_written else None,
        "how": how,
        "statements": given.statements,
        "is_quantized": is_quantized,
        "outcome": compared,
        "budget": None if found is None else json.loads(found.to_json()),
    }

    def text(out: Console) -> None:
        for statement in given.statements:
            out.print(statement)
        if found is not None:
            found.statement = found.statement.replace("pass Budget(must_be_faster=False)", "give --even-if-slower")
            print_budget(out, found)
        elif not is_quantized:
            out.print(
                "Nothing was quantized: the model has no node of the chosen operators that can be. "
                f"{output} is the model as it was."
            )
        if compared is not None:
            if given.statements or found is not None:
                out.print()
            _print(out, output, compared, found)

    show(facts, text, as_json)
    return GOOD if is_quantized else FAILED


class _Data:
    """Samples from files, or random ones, with what is to be said about those."""

    def __init__(
        self,
        model: Path,
        batch: int,
        most: int,
        seed: int,
        sizes: dict[str, int],
        shapes_: dict[str, tuple[int, ...]],
    ) -> None:
        from sardonyx.bench.inputs import declared_inputs

        self._model, self._batch, self._most, self._seed = model, batch, most, seed
        self._sizes, self._shapes = sizes, shapes_
        self._declared = declared_inputs(model)
        self.statements: list[str] = []
        self.is_cut = False
        """Whether there are more samples than those that were read last."""

    def read(self, given: Sequence[str] | None) -> list[dict[str, Any]]:
        if given:
            from sardonyx.bench.samples import read_samples

            found = read_samples(self._declared, given, self._batch, self._most + 1 if self._most else 0)
            self.is_cut = 0 < self._most < len(found)
            return found[: self._most or None]
        from sardonyx.bench.inputs import generate_inputs

        count = min(self._most or GENERATED, GENERATED)
        made = [
            generate_inputs(self._model, dimensions=self._sizes, shapes=self._shapes, seed=self._seed + i)
            for i in range(count)
        ]
        self.is_cut = False
        self.statements = [
            f"{count} random samples stand in for data: give --data, or ranges and errors mean little.",
            *made[0].statements,
        ]
        return [dict(each.feeds) for each in made]


def _metric(labels: str, answers: str | None, first_ones: bool) -> Any:
    from sardonyx.bench.files import read_array
    from sardonyx.quantization.accuracy import ShareRight

    return ShareRight(read_array(labels), answers, first_ones)


def _budget(number: float | None, has_labels: bool, even_if_slower: bool, max_seconds: float, judged: Any) -> Any:
    if number is None:
        return None
    from sardonyx.quantization import Budget

    return Budget(
        max_loss=number if has_labels else None,
        min_sqnr_db=None if has_labels else number,
        must_be_faster=not even_if_slower,
        evaluation=judged,
        max_seconds=max_seconds,
    )


def _static(
    model: Path,
    output: Path,
    calibration: Any,
    what: dict[str, Any],
    format_: Format | None,
    activation_type: Type,
    method: Method,
    metric: Any,
    budget: Any,
) -> Report | None:
    from sardonyx.quantization import CalibrationMethod, QuantFormat, quantize_static

    return quantize_static(
        model,
        output,
        calibration,
        quant_format=QuantFormat.QOperator if format_ is Format.qoperator else QuantFormat.QDQ,
        activation_type=_type(activation_type),
        calibrate_method=CalibrationMethod[METHODS[method]],
        budget=budget,
        metric=None if budget is None else metric,
        **what,
    )


def _config(
    algorithm: Algorithm,
    format_: Format | None,
    op_types: list[str] | None,
    bits: int,
    block_size: int,
    symmetric: bool,
    calibration: Any,
) -> Any:
    from sardonyx.quantization import QuantFormat
    from sardonyx.quantization import matmul_nbits_quantizer as quantizers

    given: dict[str, Any] = {
        "quant_format": QuantFormat.QDQ if format_ is Format.qdq else QuantFormat.QOperator,
        "op_types_to_quantize": tuple(op_types) if op_types else None,
    }
    if algorithm is Algorithm.rtn:
        return quantizers.RTNWeightOnlyQuantConfig(**given)
    if algorithm is Algorithm.kquant:
        return quantizers.KQuantWeightOnlyQuantConfig(**given)
    if algorithm is Algorithm.hqq:
        return quantizers.HQQWeightOnlyQuantConfig(block_size, bits, **given)
    if algorithm is Algorithm.gptq:
        return quantizers.GPTQWeightOnlyQuantConfig(calibration, **given)
    return quantizers.DefaultWeightOnlyQuantConfig(block_size, symmetric, bits=bits, **given)


def _weights(model: Path, output: Path, blocks: dict[str, Any], config: Any, external_data: bool) -> None:
    from sardonyx.quantization import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(model, **blocks, algo_config=config)
    made.process()
    made.model.save_model_to_file(str(output), external_data)


def _type(kind: Type) -> Any:
    from sardonyx.quantization import QuantType

    return QuantType[TYPES[kind]]


def _print(out: Console, output: Path, found: Outcome, search: Report | None) -> None:
    out.print(f"{output}: {nbytes_text(found.nbytes[1])}", soft_wrap=True)
    rows: list[Sequence[str]] = [
        ("size", *map(nbytes_text, found.nbytes), f"{found.nbytes[1] / found.nbytes[0]:.2f} of it"),
        ("a run", *map(seconds_text, found.seconds), f"{found.speedup:.2f} times as fast"),
    ]
    if found.metric is not None:
        before, after = found.metric
        rows.append(("right answers", f"{before:.2%}", f"{after:.2%}", f"{100 * (after - before):+.2f} points"))
    out.print(table(("", ">float", ">quantized", ""), rows))
    noise = f"SQNR {decibels(found.sqnr_db)} dB, cosine {found.cosine:.5f}, of the worst output over"
    searched = found.samples if search is None else search.samples[0]
    if searched == found.samples:
        out.print(f"{noise} {found.samples} samples.")
    else:
        out.print(f"{noise} all {found.samples} samples; the search compared the first {searched}.")
    if not found.is_finite:
        out.print("Outputs are NOT FINITE where the float model's are.")
    if not found.is_faster:
        out.print("It is no faster than the float model on this machine.")
    out.print()
    out.print(table(("operator", ">float", ">quantized"), [(op, *counts) for op, counts in found.operators.items()]))
