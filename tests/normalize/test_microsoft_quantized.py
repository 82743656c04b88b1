"""QLinear operators, integer products, blockwise weights and the quantized LSTM of com.microsoft."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from sardonyx import dtypes, errors
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from tests.normalize.contrib import (  # noqa: F401
    agree,
    fresh_numbers,
    gives,
    integers,
    model,
    normal,
    ours,
    rng,
    scales,
    weights,
)

I32, F32 = np.int32, np.float32
BYTES = [np.int8, np.uint8]


def tensor(dtype, *shape):
    """A quantized tensor, its scale and its zero point."""
    return integers(dtype, *shape), scales(), integers(dtype)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 4, 5)])
def test_pointwise(dtype, shape):
    out = scales(), integers(dtype)
    for name in ("QLinearAdd", "QLinearMul"):
        agree(name, *tensor(dtype, *shape), *tensor(dtype, *shape), *out)
        agree(name, *tensor(dtype, *shape), *tensor(dtype, shape[-1]), *out)
    lowest = np.array(np.iinfo(dtype).min, dtype)
    agree("QLinearSigmoid", *tensor(dtype, *shape), np.array(1 / 256, F32), lowest)
    agree("QLinearLeakyRelu", *tensor(dtype, *shape), *out, alpha=0.2)
    agree("QLinearWhere", rng.random(shape) > 0.5, *tensor(dtype, *shape), *tensor(dtype, *shape), *out)
    agree("QLinearConcat", *out, *tensor(dtype, *shape), *tensor(dtype, *shape), axis=1)


def test_pointwise_without_zero_points():
    a, b = integers(np.uint8, 3, 4), integers(np.uint8, 3, 4)
    s, t, u = scales(), scales(), np.array(0.1, F32)
    want = np.clip(np.round((a * s + b * t) / u), 0, 255).astype(np.uint8)
    gives("QLinearAdd", (a, s, None, b, t, None, u), [want])


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(
    ("attributes", "step"),
    [({"opset": 13}, 1 / 256), ({"opset": 13, "axis": 0}, 0.0078), ({"opset": 12, "axis": 1}, 1 / 200)],
)
def test_softmax(dtype, attributes, step):
    lowest = np.array(np.iinfo(dtype).min, dtype)
    agree("QLinearSoftmax", *tensor(dtype, 2, 3, 4), np.array(step, F32), lowest, **attributes)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 0, 0], "count_include_pad": 1, "strides": [2, 2]},
    ],
)
def test_average_pools(dtype, last, window):
    x = integers(dtype, 1, 8, 8, 3) if last else integers(dtype, 1, 3, 8, 8)
    step, zero, out = scales(), integers(dtype), (scales(), integers(dtype))
    agree("QLinearAveragePool", x, step, zero, *out, channels_last=last, **window)
    # With one scale for both, means of exactly half a step are common, and the order of summing decides them.
    agree("QLinearAveragePool", x, step, zero, step, out[1], channels_last=last, steps=1, **window)
    agree("QLinearGlobalAveragePool", x, step, zero, *out, channels_last=last)


def test_average_pool_rounds_after_adding_the_zero_point():
    x = np.array([0, 0, 1, 1, 0, 2, 1, 3], np.uint8).reshape(1, 1, 2, 4)
    one, zero = np.array(1, F32), np.array(0, np.uint8)
    for offset in (1, 2):
        agree("QLinearAveragePool", x, one, zero, one, np.array(offset, np.uint8), kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize("dtype", BYTES)
def test_reduce_mean(dtype):
    x, step, zero = tensor(dtype, 2, 3, 4)
    out = np.array(0.03, F32), np.array(5, dtype)
    mean = ((x.astype(F32) - F32(zero)) * step).mean((0, 2), keepdims=True)
    limits = np.iinfo(dtype)
    want = np.clip(np.round(mean / out[0]) + 5, limits.min, limits.max).astype(dtype)
    gives("QLinearReduceMean", (x, step, zero, *out), [want], axes=[0, 2], keepdims=1)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("last", [0, 1])
def test_conv(dtype, last):
    x = integers(dtype, 1, 6, 6, 4) if last else integers(dtype, 1, 4, 6, 6)
    weight = weights(dtype, 8, 4, 3, 3), scales(8), np.zeros(8, dtype)
    out, bias = (np.array(3.0, F32), integers(dtype)), rng.integers(-1000, 1000, 8).astype(I32)
    flags = {"channels_last": last, "pads": [1, 1, 1, 1]}
    agree("QLinearConv", x, scales(), integers(dtype), *weight, *out, bias, const=(3, 4, 5), **flags)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(dtype, per_column, quantized, transposed):
    a, b = integers(dtype, 4, 5), weights(dtype, 5, 3)
    a, b = (x.T.copy() if transposed else x for x in (a, b))
    columns = (3,) if per_column else ()
    c = rng.integers(-900, 900, (4, 3)).astype(I32) if per_column else None
    out = (np.array(1.5, F32), integers(dtype)) if quantized else ()
    inputs = (a, scales(), integers(dtype), b, scales(*columns), integers(dtype, *columns), c, *out)
    agree("QGemm", *inputs, alpha=0.9, transA=transposed, transB=transposed)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("per_column", [False, True])
def test_integer_products(dtype, per_column):
    columns = (3,) if per_column else ()
    b, step, zero, bias = weights(dtype, 5, 3), scales(*columns), integers(dtype, *columns), normal(3)
    a = integers(np.uint8, 2, 4, 5)
    agree("MatMulIntegerToFloat", a, b, scales(), step, integers(np.uint8), zero, bias)
    agree("MatMulIntegerToFloat", a, b, scales(), step)
    agree("DynamicQuantizeMatMul", normal(2, 4, 5), b, step, zero, bias)
    agree("DynamicQuantizeMatMul", normal(2, 4, 5), b, step)


def test_wider_integers():
    a, b = integers(np.int16, 3, 4), integers(np.int16, 4, 5)
    agree("MatMulInteger16", a, b)
    x, y, p, q = integers(np.uint8, 3, 4), integers(np.uint8, 4), integers(np.uint8), integers(np.uint8)
    gives("MulInteger", (x, p, y, q), [(x.astype(I32) - I32(p)) * (y.astype(I32) - I32(q))])
    gives("ReduceSumInteger", (x,), [x.sum(1, keepdims=True, dtype=np.uint32)], axes=[1], keepdims=1)


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int8, np.uint8])
def test_linear(dtype):
    agree("QuantizeLinear", normal(3, 4) * 50, scales(), integers(dtype))
    agree("QuantizeLinear", normal(3, 4) * 50, scales(4), integers(dtype, 4), axis=1)
    agree("DequantizeLinear", integers(dtype, 3, 4), scales(), integers(dtype))
    agree("DequantizeLinear", integers(dtype, 3, 4), scales(3), integers(dtype, 3), axis=0)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("k", "block", "n"), [(32, 16, 3), (40, 16, 5), (96, 32, 4)])
@pytest.mark.parametrize("zeros", ["default", "packed", "real"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_mat_mul_n_bits(bits, k, block, n, zeros, dtype):
    if zeros == "real" and bits == 8:
        pytest.skip("onnxruntime has no kernel for 8 bits with real zero points")
    blocks = -(-k // block)
    weight, step = integers(np.uint8, n, blocks, block * bits // 8), scales(n, blocks).astype(dtype)
    points = {
        "default": None,
        "packed": integers(np.uint8, n, -(-blocks * bits // 8)),
        "real": rng.uniform(0, 2**bits, (n, blocks)).astype(dtype),
    }[zeros]
    inputs = (normal(2, 3, k, dtype=dtype), weight, step, points, None, normal(n, dtype=dtype))
    tolerance = 1e-4 if dtype == np.float32 else 3e-3
    for const in ((1, 2, 3, 5), ()):
        agree("MatMulNBits", *inputs, const=const, tolerance=tolerance, N=n, K=k, block_size=block, bits=bits)


def test_mat_mul_n_bits_with_groups():
    weight, groups = integers(np.uint8, 3, 2, 8), rng.integers(0, 2, 32).astype(I32)
    inputs = (normal(2, 32), weight, scales(3, 2), None, groups)
    for const in ((1, 2, 4), ()):
        agree("MatMulNBits", *inputs, const=const, tolerance=1e-4, N=3, K=32, block_size=16)


def test_mat_mul_n_bits_refuses_other_widths():
    proto = model("MatMulNBits", (normal(2, 32), integers(np.uint8, 3, 2, 6), scales(3, 2)),
                  {"N": 3, "K": 32, "block_size": 16, "bits": 3})  # fmt: skip
    with pytest.raises(errors.NotImplemented, match="bits=3"):
        ours(proto, {})


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("n", "k", "block"), [(4, 32, 16), (3, 16, 32), (6, 48, 64)])
def test_mat_mul_bnb4(kind, n, k, block):
    inputs = normal(2, 3, k), integers(np.uint8, n * k // 2), scales(-(-n * k // block))
    agree("MatMulBnb4", *inputs, const=(1, 2), N=n, K=k, block_size=block, quant_type=kind)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("pointed", [False, True])
def test_gather_from_packed_blocks(bits, block, pointed):
    rows, width = 10, 64
    table, step = integers(np.uint8, rows, width * bits // 8), scales(rows, width // block)
    points = integers(np.uint8, rows, -(-(width // block) * bits // 8)) if pointed else None
    for indices in (rng.integers(0, rows, (2, 3)), rng.integers(-rows, rows, 4).astype(I32)):
        options = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
        agree("GatherBlockQuantized", table, indices, step, points, const=(0, 2, 3), **options)


@pytest.mark.parametrize("dtype", [ml_dtypes.uint4, ml_dtypes.int4])
@pytest.mark.parametrize(("gather", "quantize"), [(0, 1), (1, 0), (0, 2), (2, 1), (1, 1)])
@pytest.mark.parametrize("pointed", [False, True])
def test_gather_from_blocks(dtype, gather, quantize, pointed):
    sizes = [5, 32, 32]
    low = 0 if dtype == ml_dtypes.uint4 else -8
    table = (rng.integers(0, 16, sizes) + low).astype(dtype)
    sizes[quantize] = -(-sizes[quantize] // 16)
    points = (rng.integers(0, 16, sizes) + low).astype(dtype) if pointed else None
    indices = np.array([[0, 4, -1], [2, 100, -100]])
    options = {"block_size": 16, "gather_axis": gather, "quantize_axis": quantize}
    agree("GatherBlockQuantized", table, indices, scales(*sizes), points, const=(0, 2, 3), **options)


@pytest.mark.parametrize("dtype", [ml_dtypes.uint4, ml_dtypes.int4])
def test_tables_stay_packed(dtype):
    """Two codes in each byte, as in the file, so that a table takes no more memory than there."""
    low = 0 if dtype == ml_dtypes.uint4 else -8
    table = (rng.integers(0, 16, [64, 96]) + low).astype(dtype)
    node = onnx.helper.make_node("GatherBlockQuantized", ["w", "i", "s"], ["y"], domain="com.microsoft", block_size=32)
    value, constants = onnx.helper.make_tensor_value_info, {"w": table, "s": scales(64, 3)}
    graph = onnx.helper.make_graph(
        [node], "g", [value("i", onnx.TensorProto.INT64, ["n"])], [value("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    loaded = load(onnx.helper.make_model(graph, ir_version=10, opset_imports=opsets))
    normalize(loaded)
    read = [v.const for node in loaded.graph.nodes for v in node.inputs if v is not None and v.const is not None]
    assert max(t.size for t in read if t.dtype is not dtypes.f32) == table.size // 2


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("per_column", [False, True])
def test_lstm(direction, dtype, per_column):
    count, size, hidden = 2 if direction == "bidirectional" else 1, 5, 4
    columns = (count, 4 * hidden) if per_column else (count,)
    both = weights(dtype, count, size, 4 * hidden), weights(dtype, count, hidden, 4 * hidden)
    zero = np.zeros(columns, dtype)
    parameters = (scales(*columns) / 10, zero, scales(*columns) / 10, zero)
    lengths, state = np.array([3, 2], I32), (normal(count, 2, hidden), normal(count, 2, hidden))
    inputs = (normal(3, 2, size), *both, normal(count, 8 * hidden), lengths, *state, normal(count, 3 * hidden))
    options = {"hidden_size": hidden, "direction": direction, "const": (1, 2, 8, 9, 10, 11)}
    agree("DynamicQuantizeLSTM", *inputs, *parameters, outputs=3, tolerance=2e-6, **options)
