"""The choice among kernel variants: its record, and variants that are forced or forbidden give the same answers."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.providers.cpu import pipeline, select
from sardonyx.providers.cpu.program.variants import ANY_KERNEL, KernelPolicy
from tests.providers.cpu.test_random_nets import TOLERANCES, random_net

ort = pytest.importorskip("onnxruntime")

CHIPS = ("sapphirerapids", "skylake-avx512", "haswell", "x86-64")
NETS = 6
MANY = [v.name for variants in select.VARIANTS.values() if len(variants) > 1 for v in variants]
"""The variants that groups have a choice of."""
FLOAT = [name for name in MANY if not name.startswith("quantized.")]
HEAD = '<ir_version: 10, opset_import: ["" : 23]>'
TEXTS = {
    "product": "g (float[50, 130] x, float[130, 70] w) => (float[50, 70] y) { z = MatMul(x, w) y = Relu(z) }",
    "rows of a run": "g (float[n, 128] x, float[128, 96] w) => (float[n, 96] y) { y = MatMul(x, w) }",
    "weight in blocks": """g (float[n, 128] x, float[128, 160] w, float[4, 160] w2) => (float[n, 160] y)
        { q = Cast<to = 3>(w) d = DequantizeLinear<axis = 0, block_size = 32>(q, w2) z = MatMul(x, d) y = Relu(z) }""",
    "attention": """g (float[2, 2, 9, 32] q, float[2, 2, 20, 32] k, float[2, 2, 20, 32] v) => (float[2, 2, 9, 32] y)
        { y = Attention(q, k, v) }""",
    "pointwise": """g (float[1, 96, 7, 9] x, float[64, 96, 1, 1] w) => (float[1, 64, 4, 5] y)
        { y = Conv<strides = [2, 2]>(x, w) }""",
    "flat pointwise": "g (float[2, 20, 7, 9] x, float[24, 20, 1, 1] w) => (float[2, 24, 7, 9] y) { y = Conv(x, w) }",
    "deep": """g (float[1, 64, 8, 32] x, float[64, 64, 3, 3] w) => (float[1, 64, 8, 32] y)
        { z = Conv<pads = [1, 1, 1, 1]>(x, w) t = Relu(z) y = Conv<pads = [1, 1, 1, 1]>(t, w) }""",
    "few filters": "g (float[1, 33, 9, 9] x, float[2, 33, 3, 3] w) => (float[1, 2, 7, 7] y) { y = Conv(x, w) }",
    "few outputs": "g (float[1, 40, 5, 5] x, float[48, 40, 5, 5] w) => (float[1, 48, 1, 1] y) { y = Conv(x, w) }",
    "first layer": """g (float[1, 3, 20, 22] x, float[24, 3, 3, 3] w) => (float[1, 24, 9, 10] y)
        { y = Conv<strides = [2, 2]>(x, w) }""",
    "depthwise": """g (float[2, 20, 9, 11] x, float[20, 1, 3, 3] w) => (float[2, 20, 9, 11] y)
        { y = Conv<pads = [1, 1, 1, 1], group = 20>(x, w) }""",
    "inverted residual": """g
        (float[1, 16, 14, 14] x, float[96, 16, 1, 1] w, float[96, 1, 3, 3] w2) => (float[1, 96, 14, 14] y)
        { z = Conv(x, w) t = Relu(z) y = Conv<pads = [1, 1, 1, 1], group = 96>(t, w2) }""",
    "grouped": """g (float[1, 12, 9, 11] x, float[16, 3, 3, 3] w) => (float[1, 16, 7, 9] y)
        { y = Conv<group = 4>(x, w) }""",
    "windows": "g (float[1, 1, 900] x, float[32, 1, 7] w) => (float[1, 32, 224] y) { y = Conv<strides = [4]>(x, w) }",
    "sampled": "g (float[2, 20, 7, 9] x, float[2, 5, 6, 2] r) => (float[2, 20, 5, 6] y) { y = GridSample(x, r) }",
    "sequence": "g (float[1, 24, n] x, float[32, 24, 3] w) => (float[1, 32, m] y) { y = Conv(x, w) }",
    "pool": """g (float[1, 20, 12, 13] x, float[32, 20, 1, 1] w) => (float[1, 32, 6, 6] y)
        { z = Conv(x, w) y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(z) }""",
    "transpose": "g (float[40, 50] x, float[50, 40] z) => (float[50, 40] y) { t = Transpose(x) y = Add(t, z) }",
    "planes": "g (float[1, 3, 20, 30] x) => (float[1, 20, 30, 3] y) { y = Transpose<perm = [0, 2, 3, 1]>(x) }",
}
SIZES = {"n": 37}


@cache
def model(name: str) -> tuple[bytes, dict[str, Any], list[Any]]:
    """A model, its feeds, and onnxruntime's answer. What is called ``w`` is a constant."""
    if name.startswith("net "):
        content, feeds = random_net(int(name[4:]))
    else:
        proto = onnx.parser.parse_model(HEAD + TEXTS[name])
        rng, feeds = np.random.default_rng(sum(name.encode())), {}
        for value in list(proto.graph.input):
            dims = value.type.tensor_type.shape.dim
            array = rng.standard_normal([d.dim_value or SIZES[d.dim_param] for d in dims]).astype(np.float32)
            if value.name.startswith("w"):
                proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
                proto.graph.input.remove(value)
            else:
                feeds[value.name] = array
        content = proto.SerializeToString()
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return content, feeds, ort.InferenceSession(content, plain, providers=["CPUExecutionProvider"]).run(None, feeds)


def session_of(content: bytes, precision: str = "highest", **config: str) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = 2
    for key, names in config.items():
        options.add_session_config_entry(f"session.kernel.{key}", names)
    return sardonyx.InferenceSession(content, options, precision=precision)


def chosen(session: sardonyx.InferenceSession) -> set[str]:
    return {row.chosen for rows in session.explain(stage="cpu").parts for row in rows}


def check(session: sardonyx.InferenceSession, name: str, precision: str) -> None:
    _, feeds, expected = model(name)
    for got, want in zip(session.run(None, feeds), expected, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCES[precision] * max(np.abs(want).max(), 1e-2))


@pytest.mark.sliced(23)
@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", [*TEXTS, *(f"net {seed}" for seed in range(NETS))])
def test_forced_variants_give_the_same_answers(
    name: str, chip: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each variant is forced, and those that take a group are run: the others decline, and nothing else changes."""
    monkeypatch.setenv("SARDONYX_CPU", chip)
    content, seen = model(name)[0], set()
    families = {each.partition(".")[0] for each in chosen(session_of(content, precision))}
    for variant in (each for each in FLOAT if each.partition(".")[0] in families):
        session = session_of(content, precision, force=variant)
        kinds = frozenset(chosen(session))
        if variant in kinds and (variant, kinds) not in seen:
            seen.add((variant, kinds))
            check(session, name, precision)
    assert seen


REACHED = {
    "sapphirerapids": {
        "attention.amx", "attention.vector", "gemm.amx", "gemm.int8_slices", "gemm.vector", "conv.int8_slices",
        "gemm.blocks_amx", "gemm.blocks_few_rows",
        "conv.on_tiles", "conv.direct", "conv.nhwc", "conv.im2col",
    },
    "skylake-avx512": {
        "conv.stem", "conv.dot_product", "conv.winograd_nhwc", "conv.winograd_nchw", "conv.nhwc", "conv.depthwise_nhwc",
        "conv.strided_windows", "gemm.swapped", "gemm.blocks_vector", "image.grid_sample_nhwc", "image.grid_sample",
        "conv.depthwise_nchw", "conv.pointwise_nchw", "conv.im2col", "conv.direct", "image.pool_nhwc",
        "image.pool_nchw", "loops.interleave", "loops.copy", "loops.loop",
    },
}  # fmt: skip


@pytest.mark.parametrize("chip", REACHED)
def test_every_variant_can_be_reached(chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By force, in one of the models above: what the other tests compare is not an empty set."""
    monkeypatch.setenv("SARDONYX_CPU", chip)
    found = set[str]()
    for variant in sorted(REACHED[chip]):
        for name in TEXTS:
            if variant in (names := chosen(session_of(model(name)[0], force=variant))):
                found |= names
                break
    assert sorted(REACHED[chip] - found) == []


def test_forbidden_variants_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", "skylake-avx512")
    content = model("deep")[0]
    names = ["conv.winograd_nhwc", "conv.nhwc", "conv.winograd_nchw", "conv.direct"]
    for i, name in enumerate(names):
        session = session_of(content, forbid=",".join(names[:i]))
        assert name in chosen(session) and chosen(session).isdisjoint(names[:i])
        check(session, "deep", "highest")
    session = session_of(content, forbid=";".join(names))  # nobody is left to compile it
    assert "nothing is compiled" in str(session.explain(stage="cpu"))
    check(session, "deep", "highest")


def test_the_record_of_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names the variant of every group, and why those before it declined."""
    monkeypatch.setenv("SARDONYX_CPU", "skylake-avx512")
    report = session_of(model("deep")[0]).explain(stage="cpu")
    row = next(row for rows in report.parts for row in rows if row.chosen.startswith("conv."))
    assert row.chosen == "conv.winograd_nhwc"
    assert dict(row.refusals)["conv.on_tiles"] == "no tiles on avx512"
    assert "not conv.on_tiles: no tiles on avx512" in str(report)
    assert all(row.chosen for rows in report.parts for row in rows)
    forced = session_of(model("deep")[0], force="conv.direct").explain(stage="cpu")
    refusals = dict(next(row.refusals for rows in forced.parts for row in rows if row.chosen == "conv.direct"))
    assert refusals["conv.nhwc"] == "conv.direct forced by session.kernel.force"


def test_a_pair_has_the_refusals_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", "skylake-avx512")
    rows = [row for part in session_of(model("inverted residual")[0]).explain(stage="cpu").parts for row in part]
    refusals = next(row.refusals for row in rows if row.chosen == "conv.pointwise_depthwise")
    assert ("conv.winograd_nhwc", "the window is not 3 x 3 of stride 1") in refusals, "of the pointwise convolution"
    assert ("conv.nhwc", "depthwise") in refusals, "of the depthwise one"
    assert len(set(refusals)) == len(refusals)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"force": "conv.winograd"}, "names a kernel variant that does not exist"),
        ({"forbid": "gemm.vector, nonsense"}, "names a kernel variant that does not exist"),
        ({"force": "conv.nhwc", "forbid": "conv.nhwc"}, "both forced and forbidden"),
    ],
)
def test_names_that_make_no_sense(config: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        session_of(model("deep")[0], **config)


def test_policies() -> None:
    assert ANY_KERNEL.refusal("conv.nhwc") is None
    policy = KernelPolicy(frozenset({"conv.direct"}), frozenset({"gemm.amx"}))
    assert policy.refusal("conv.direct") is None and policy.refusal("gemm.vector") is None
    assert policy.refusal("conv.nhwc") is not None and policy.refusal("gemm.amx") is not None
    assert policy.allows("conv.nhwc", "conv.direct") and not policy.allows("conv.nhwc")


def test_variants_are_named_for_files() -> None:
    import importlib

    for name in select.by_name():
        family, _, kernel = name.partition(".")
        module = {"bit_cast": "copy", "gather_elements": "gather", "counted_gather": "nonzero"}.get(kernel, kernel)
        importlib.import_module(f"sardonyx.providers.cpu.kernels.{family}.{module}")


TABLES = """
from sardonyx.providers.cpu import tables
for family, kinds in tables.FAMILIES.items():
    assert set(tables.table_of(family)) == set(kinds), family
"""
WITHOUT_CONVOLUTIONS = """
import sys
import onnx.parser, sardonyx
text = '<ir_version: 10, opset_import: ["" : 23]> g (float[4, 8] x, float[8, 4] w) => (float[4, 4] y) {{ y = {} }}'
sardonyx.InferenceSession(onnx.parser.parse_model(text.format(sys.argv[1])).SerializeToString())
kernels = "sardonyx.providers.cpu.kernels."
print(*{name.removeprefix(kernels).partition(".")[0] for name in sys.modules if name.startswith(kernels)})
"""


def test_tables_list_the_kinds_that_they_are_imported_for() -> None:
    subprocess.run([sys.executable, "-c", TABLES], check=True)


@pytest.mark.parametrize("node", ["Relu(x)", "MatMul(x, w)"])
def test_kernels_of_other_families_are_not_imported(node: str) -> None:
    found = subprocess.run([sys.executable, "-c", WITHOUT_CONVOLUTIONS, node], stdout=subprocess.PIPE, check=True)
    families = found.stdout.decode().split()
    assert "loops" in families and not {"attention", "image", "recurrent", "trees"} & set(families)


def test_groups_are_written_after_every_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_DUMP", str(tmp_path / "new"))
    check(session_of(model("deep")[0]), "deep", "highest")
    (part,) = (tmp_path / "new").iterdir()
    files = sorted(part.iterdir())
    names = [one.name for one in (*pipeline.LAYOUT, *pipeline.SELECTION)]
    assert [file.name[3:-4] for file in files] == names and len(set(names)) == len(names)
    assert "Convolution (Conv node" in files[0].read_text() and "  conv." in files[-1].read_text()
