"""Weight-only quantization with the names of ``onnxruntime.quantization.matmul_nbits_quantizer``.

    quantizer = MatMulNBitsQuantizer("model.onnx", bits=4, block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file("model.int4.onnx", use_external_data_format=True)

Weights become 4 or 8 bits with a scale for each block; activations stay reals. ``algo_config`` selects the algorithm.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Model, Node
from sardonyx.model.load import load
from sardonyx.quantization.companions import companions
from sardonyx.quantization.data import feeds_of
from sardonyx.quantization.kinds import QuantFormat
from sardonyx.quantization.onnx_model import QuantizedModel
from sardonyx.quantization.weight_only import gptq, hessians, hqq, k_quant, rtn, spelling
from sardonyx.quantization.weight_only.configs import (
    BITS,
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
)
from sardonyx.quantization.weight_only.pack import Array, Blocked, Blocks, by_columns
from sardonyx.quantization.weight_only.rewrite import (
    Selection,
    Spelled,
    Weight,
    gathers,
    products,
    rewrite_gathers,
    rewrite_products,
)
from sardonyx.quantization.weight_only.tables import BlockedTable, quantize_table

if TYPE_CHECKING:
    import onnx

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "QuantFormat",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
]

logger = logging.getLogger(__name__)

LEAST_BLOCK = 16


class MatMulNBitsQuantizer:
    """Quantizes the constant weights of MatMul and, on request, the tables of Gather."""

    def __init__(
        self,
        model: str | os.PathLike[str] | onnx.ModelProto | Model,
        bits: int = 4,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Iterable[str] | None = None,
        nodes_to_include: Iterable[str] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        quant_axes: Iterable[tuple[str, int]] | Mapping[str, int] | None = None,
        channel_wised_quantize: bool = False,
        algo_config: WeightOnlyQuantConfig | None = None,
    ) -> None:
        """As in onnxruntime, an ``algo_config`` with a block size, bits or accuracy level of its own overrides these
        arguments; ``nodes_to_include`` adds nodes to those of ``op_types_to_quantize``.
        """
        if algo_config is None:
            algo_config = DefaultWeightOnlyQuantConfig(
                block_size=block_size,
                is_symmetric=is_symmetric,
                accuracy_level=accuracy_level,
                quant_format=quant_format,
                op_types_to_quantize=op_types_to_quantize,
                quant_axes=quant_axes,
                bits=bits,
                channel_wised_quantize=channel_wised_quantize,
            )
        if not isinstance(algo_config, WeightOnlyQuantConfig):
            raise InvalidArgument("algo_config is a WeightOnlyQuantConfig", got=type(algo_config).__name__)
        self.bits, self.block_size, self.is_symmetric, self.accuracy_level = (
            bits,
            block_size,
            is_symmetric,
            accuracy_level,
        )
        self.nodes_to_exclude = set(nodes_to_exclude or ())
        self.nodes_to_include = set(nodes_to_include) if nodes_to_include else None
        self.algo_config = algo_config
        self._blocks = self._checked_blocks()
        self.model_path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
        self._source = clone(model) if isinstance(model, Model) else load(model)
        self.model = QuantizedModel(self._source)

    def process(self) -> None:
        """Quantize; ``model`` is the result."""
        model, config = clone(self._source), self.algo_config
        include = frozenset(self.nodes_to_include or ())
        self._warn_of_unknown_names(model)
        selection = Selection(frozenset(config.op_types_to_quantize), include, frozenset(self.nodes_to_exclude))
        found = list(products(model, selection))
        tables = [] if config.algorithm == "HQQ" else list(gathers(model, selection))
        count = 0
        if found and config.algorithm == "GPTQ":
            count += self._compensate(model, found)
        elif found:
            count += rewrite_products(model, found, self._round, self._spelled())
        if tables:
            count += rewrite_gathers(model, tables, self._round_table)
        logger.info("%s: %d nodes have weights of %d bits now", config.algorithm, count, self._blocks.bits)
        if not count:
            logger.warning("no node was quantized: none of the selected ones reads a constant matrix of reals")
        self.model = QuantizedModel(model)

    # -- algorithms

    def _round(self, weight: Weight, matrix: Array) -> Blocked:
        """Codes by an algorithm that needs no data."""
        config, blocks = self.algo_config, self._blocks_of(weight.node, len(matrix))
        wide = matrix.astype("float32") if matrix.dtype == dtypes.bf16.numpy else matrix
        if isinstance(config, RTNWeightOnlyQuantConfig):
            ratio = float(config.ratios.get(weight.name, 1))
            made = by_columns(wide, lambda w: rtn.rtn(w, blocks, ratio))
        elif isinstance(config, KQuantWeightOnlyQuantConfig):
            made = by_columns(wide, lambda w: k_quant.k_quant(w, blocks))
        elif isinstance(config, HQQWeightOnlyQuantConfig):
            made = by_columns(wide, lambda w: hqq.hqq(w, blocks))
        elif config.quant_format is QuantFormat.QDQ:
            made = by_columns(wide, lambda w: rtn.nearest_rows(w, blocks))
        else:
            made = by_columns(wide, lambda w: rtn.nearest(w, blocks))
        return _in_type_of(matrix, made)

    def _compensate(self, model: Model, weights: list[Weight]) -> int:
        """GPTQ, group by group of products whose Hessians fit in memory."""
        config = self.algo_config
        assert isinstance(config, GPTQWeightOnlyQuantConfig)
        if config.calibration_data_reader is None:
            raise InvalidArgument("GPTQ needs calibration data", hint="give calibration_data_reader")
        options = gptq.GptqOptions(config.percdamp, config.block_size, config.actorder, config.mse, config.perchannel)
        outside = [w for w in weights if w.node.graph is not model.graph]
        for weight in outside:
            logger.warning(
                "%s is in a body, whose values are not recorded: it is rounded to nearest", weight.node.label
            )
        data = list(feeds_of(config.calibration_data_reader))
        inside = [w for w in weights if w.node.graph is model.graph]
        found: dict[Any, Blocked] = {}
        for group in hessians.passes(inside):
            sums = hessians.collect(self._source, group, data)
            for weight in group:
                matrix = weight.array()
                matrix = matrix.reshape(matrix.shape[-2:])
                blocks, hessian = self._blocks_of(weight.node, len(matrix)), sums[hessians.input_name(weight)]
                wide = matrix.astype("float32") if matrix.dtype == dtypes.bf16.numpy else matrix
                if weight.shared not in found:
                    found[weight.shared] = _in_type_of(matrix, gptq.gptq(wide, hessian, blocks, options))
        for weight in outside:
            matrix = weight.array()
            matrix = matrix.reshape(matrix.shape[-2:])
            found.setdefault(weight.shared, self._rounded(weight, matrix))
        return rewrite_products(model, weights, lambda weight, matrix: found[weight.shared], self._spelled())

    def _rounded(self, weight: Weight, matrix: Array) -> Blocked:
        blocks = self._blocks_of(weight.node, len(matrix))
        wide = matrix.astype("float32") if matrix.dtype == dtypes.bf16.numpy else matrix
        return _in_type_of(matrix, by_columns(wide, lambda w: rtn.rtn(w, blocks)))

    def _round_table(self, table: Array) -> BlockedTable:
        axis = self.algo_config.quant_axes.get("Gather", 1)
        if not -table.ndim <= axis < table.ndim:
            raise InvalidArgument("quant_axes has an axis that a Gather's table lacks", expected=table.shape, got=axis)
        axis %= table.ndim
        if self._blocks.bits == 8 and axis != table.ndim - 1:
            raise NotImplemented(
                "GatherBlockQuantized has codes of 8 bits in blocks along the last axis only", got=axis
            )
        wide = table.astype("float32") if table.dtype == dtypes.bf16.numpy else table
        made = quantize_table(wide, axis, self._blocks)
        return BlockedTable(made.codes, made.scales.astype(table.dtype), made.zeros, axis, made.size, made.bits)

    # -- settings

    def _checked_blocks(self) -> Blocks:
        config = self.algo_config
        bits = getattr(config, "bits", self.bits)
        size = (
            self.block_size
            if isinstance(config, GPTQWeightOnlyQuantConfig)
            else getattr(config, "block_size", self.block_size)
        )
        symmetric = bool(getattr(config, "is_symmetric", self.is_symmetric)) and config.algorithm != "HQQ"
        if bits not in BITS[config.algorithm]:
            raise InvalidArgument(
                f"{config.algorithm} writes codes of other widths", expected=BITS[config.algorithm], got=bits
            )
        if config.quant_format is QuantFormat.QDQ and bits == 2:
            raise NotImplemented("DequantizeLinear with codes of 2 bits is not written", expected="4 or 8 bits")
        if "Gather" in config.op_types_to_quantize:
            if config.quant_format is QuantFormat.QDQ:
                raise NotImplemented("tables of Gather are quantized in QOperator format only")
            if bits == 2:
                raise NotImplemented("GatherBlockQuantized is written with codes of 4 or 8 bits", got=bits)
        _check_size(size)
        return Blocks(bits, size, symmetric)

    def _blocks_of(self, node: Node, k: int) -> Blocks:
        """The blocks of one node's weight."""
        blocks, config = self._blocks, self.algo_config
        if getattr(config, "channel_wised_quantize", False):
            return Blocks(blocks.bits, k, blocks.symmetric)
        own = dict((config.customized_weight_config or {}).get(node.name, {}))
        if not own:
            return blocks
        unknown = own.keys() - {"bits", "group_size", "scheme", "algorithm", "sym"}
        bits, size = own.get("bits", blocks.bits), own.get("group_size", blocks.size)
        scheme = own.get("scheme", "sym" if blocks.symmetric else "asym")
        if unknown or bits not in BITS[config.algorithm] or scheme not in ("sym", "asym"):
            raise InvalidArgument(
                "customized_weight_config is wrong", where=node.label, expected="bits, group_size, scheme: sym or asym",
                got=own,
            )  # fmt: skip
        size = 1 << max(k - 1, LEAST_BLOCK - 1).bit_length() if size == -1 else size
        _check_size(size)
        return Blocks(bits, size, scheme == "sym")

    def _spelled(self) -> Spelled:
        config = self.algo_config
        qdq = config.quant_format is QuantFormat.QDQ
        if isinstance(config, DefaultWeightOnlyQuantConfig):
            transposes = config.channel_wised_quantize and self._blocks.symmetric
            return Spelled(qdq, spelling.BY_KERNEL, config.accuracy_level, transposes)
        if isinstance(config, HQQWeightOnlyQuantConfig):
            return Spelled(qdq, spelling.BY_HQQ)
        return Spelled(qdq, spelling.BY_COMPRESSOR, self.accuracy_level)

    def _warn_of_unknown_names(self, model: Model) -> None:
        known = {node.name for node in model.graph.all_nodes()}
        asked = {*self.nodes_to_exclude, *(self.nodes_to_include or ())}
        if lacking := sorted(asked - known):
            logger.warning("nodes_to_exclude and nodes_to_include name nodes that the model lacks: %s", lacking)


def _check_size(size: int) -> None:
    if not isinstance(size, int) or size < LEAST_BLOCK or size & (size - 1):
        raise InvalidArgument("block_size is a power of two from 16 on", got=size)


def _in_type_of(matrix: Array, made: Blocked) -> Blocked:
    """Scales in the type of the weight."""
    if made.scales.dtype == matrix.dtype:
        return made
    zeros = made.zeros.astype(matrix.dtype) if made.has_real_zeros else made.zeros
    return Blocked(made.codes, made.scales.astype(matrix.dtype), zeros, made.k, made.blocks)


__getattr__ = companions(__name__)
