"""Images in terms as operands of what follows convolutions on tiles: numbers there and back; who still needs f32."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.providers.cpu import pipeline
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.conv import on_tiles
from sardonyx.providers.cpu.kernels.conv.image_epilogue import PACKED, PackedPixels
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, bf16, f32, i64
from sardonyx.providers.cpu.layout import packed_images
from sardonyx.providers.cpu.layout.in_place import in_place
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.steps import Ref, Step
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory

CHIP = "sapphirerapids"
NAMES = {1: "medium", 2: "high", 3: "highest"}


# -- numbers


@kernel(x=(f32,), image=(bf16,), y=(f32,), channels=i64, block=i64, term=i64, room=i64)
def there_and_back(
    k: Kernel, x: Buf, image: Buf, y: Buf, channels: Val, block: Val, term: Val, room: Val, *, terms: int
) -> None:
    """The channels of one pixel into terms, and out of them."""
    pixels = PackedPixels(block, term, terms, bf16)
    with k.loop(0, channels, 16) as c:
        t = Tile(c, 16, k.mask(channels - c, 16))
        pixels.store(image, room, t, x.load(t))
    with k.loop(0, channels, 16) as c:
        t = Tile(c, 16, k.mask(channels - c, 16))
        y.store(t, pixels.load(image, t))


def back(x: Array, terms: int, cpu: str | None = None) -> Array:
    block, room = terms * 32 * 3, -(-x.size // 32) * 32
    image, y = np.zeros(room // 32 * block, bf16.numpy), np.full(x.size, 7, np.float32)
    given = {"x": x, "image": image, "y": y, "channels": x.size}
    given |= {"block": block, "term": 32, "room": room}
    Launch(there_and_back(terms=terms), given, isa=isa.named(cpu), checked=True)()
    return y


def plain(count: int) -> Array:
    """Numbers of all magnitudes that terms carry as sums."""
    rng = np.random.default_rng(count)
    return (rng.standard_normal(count) * 2.0 ** rng.integers(-95, 60, count)).astype(np.float32)


ODD = np.array(
    [
        0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x0D7FFFFF, 0x5F000000, 0x7F7FFFFF, 0xFF7FFFFF,
        0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC01234, 0x7F800001,
    ],
    np.uint32,
).view(np.float32)  # fmt: skip
"""Denormals, numbers below and above those that are carried, infinities, NaN with signs and bits of their own."""


@pytest.mark.parametrize("cpu", [None, "haswell", "skylake-avx512", CHIP])
@pytest.mark.parametrize("count", [0, 1, 15, 17, 47, 64])
def test_three_terms_are_the_number(count: int, cpu: str | None) -> None:
    x = plain(count)
    x[3:8] = (0.0, -0.0, 1.0, -1.0, 1.0 + 2.0**-23)[: max(0, min(5, count - 3))]
    np.testing.assert_array_equal(back(x, 3, cpu).view(np.uint32), x.view(np.uint32))


def test_three_terms_keep_every_bit_of_odd_numbers() -> None:
    np.testing.assert_array_equal(back(ODD, 3).view(np.uint32), ODD.view(np.uint32))


@pytest.mark.parametrize(("terms", "bound"), [(1, 2.0**-8), (2, 2.0**-16)])
def test_fewer_terms_round(terms: int, bound: float) -> None:
    x = plain(300)
    got = back(x, terms)
    assert bound / 8 < np.max(np.abs(got - x) / np.abs(x)) <= bound
    signs = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(back(signs, terms)[:4].view(np.uint32), signs[:4].view(np.uint32))
    assert np.isnan(back(signs, terms)[4])


TIES = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1.5 + 2**-8], np.float32)
EVEN = np.array([1, 1 + 2**-6, -1, 1.5], np.float32)
"""Ties between two bf16 numbers, and the even one of each."""


def test_one_term_rounds_to_even() -> None:
    np.testing.assert_array_equal(back(TIES, 1), EVEN)


def test_two_terms_keep_22_bits_of_odd_numbers() -> None:
    x = ODD[5:8]
    np.testing.assert_array_equal(back(x, 2).view(np.uint32), x.view(np.uint32) & 0xFFFF_FC00)


@pytest.mark.parametrize("terms", [2, 3])
def test_terms_carry_small_numbers(terms: int) -> None:
    """Down to the smallest denormal; two terms round them as they do others."""
    small = (ODD.view(np.uint32)[:5] | np.uint32(0x0000_0335)).view(np.float32)
    x = np.concatenate((small, plain(40) * np.float32(2.0**-126)))
    assert np.count_nonzero((x != 0) & (np.abs(x) < 2.0**-126)) > 5
    got = back(x, terms).astype(np.float64)
    assert np.all(np.abs(got - x) <= (0 if terms == 3 else 2.0**-17) * np.abs(x.astype(np.float64)))


# -- residuals

BLOCKS = {
    "rows as one": """
        a0 = Conv(x, w0, b) a = Relu(a0)
        c0 = Conv(a, w1, b) c = Relu(c0) d = Conv(c, w2, b) e = Add(d, a) f = Relu(e)
        g0 = Conv(f, w3, b) g = Relu(g0) h = Conv(g, w4, b) i = Add(f, h) y = Relu(i)""",
    "padded": """
        a0 = Conv(x, w0, b) a = Relu(a0)
        c0 = Conv<pads = [1, 1, 1, 1]>(a, v1, b) c = Relu(c0) d = Conv(c, w2, b) e = Add(d, a) f = Sigmoid(e)
        g0 = Conv<pads = [2, 2, 2, 2], dilations = [2, 2]>(f, v3, b) g = Relu(g0) h = Conv(g, w4, b)
        i = Mul(f, h) y = Add(i, f)""",
    "scaled": """
        a0 = Conv(x, w0, b) a1 = Sigmoid(a0) a = Mul(a0, a1) p = GlobalAveragePool(a) q = Sigmoid(p)
        c0 = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(a, v1, b) c1 = Mul(c0, q) c2 = Sigmoid(c1) c = Mul(c1, c2)
        d = Conv(c, w2, b) e = Add(d, c) f = Tanh(e)
        g = Conv<pads = [2, 2, 2, 2], dilations = [2, 2]>(f, v3, b) y = Conv(g, w4, b)""",
    "of two branches": """
        a0 = Conv(x, w0, b) a = Relu(a0)
        c0 = Conv(a, w1, b) c = Relu(c0) d = Conv(c, w2, b) e = Conv(a, w3, b) f = Add(d, e) y = Conv(f, w4, b)""",
}


@pytest.fixture
def _wherever_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are used whether they pay or not, and of terms; memory is full of NaN."""
    monkeypatch.setattr(on_tiles, "LEAST_DEPTH", 1 << 20)
    for name in ("LEAST_SHARE", "LEAST_GAIN", "LEAST_ROWS"):
        monkeypatch.setattr(on_tiles, name, dict.fromkeys((1, 2, 3), 0))
    monkeypatch.setattr(Memory, "garbage", b"\xff")


class Net:
    def __init__(
        self, body: str, precision: str, channels: int = 50, dtype: str = "float", size: tuple[int, ...] = ()
    ) -> None:
        self.body, self.dtype = body, np.dtype({"float": "f4", "float16": "f2"}[dtype])
        rng = np.random.default_rng(0)
        n, sizes = channels, {"x": size or (2, channels, 7, 8), "b": (channels,), "u": (channels, 32, 1, 1)}
        sizes |= {f"w{i}": (n, n, 1, 1) for i in range(5)} | {f"v{i}": (n, n, 3, 3) for i in (1, 3)}
        named = re.findall(r"\w+", body)
        sizes = {name: shape for name, shape in sizes.items() if name in named}
        self.feeds = {
            k: (rng.standard_normal(s) / (1 if k == "x" else np.prod(s[1:]) ** 0.5)).astype(self.dtype)
            for k, s in sizes.items()
        }
        self.inputs = ", ".join(f"{dtype}[{','.join(map(str, s))}] {k}" for k, s in sizes.items())
        weights = {k: v for k, v in self.feeds.items() if k != "x"}
        made = Compiled(body, self.inputs, f"{dtype}[A,B,C,D] y", CHIP, precision=precision, constants=weights)
        self.compiled, self.name = made, dtype

    @property
    def kept(self) -> list[Any]:
        """Results that are written as numbers, though others read them."""
        shown = [step for step in self.compiled.steps if step.spec.name == "conv_amx"]
        found = [(dict(step.spec.statics)["epilogue"], step) for step in shown]
        assert len(found) >= 5
        return [
            step
            for epilogue, step in found
            for name, access in epilogue.names
            if name.startswith("y") and access.columns != PACKED and step.args[name].storage.kind == "temporary"
        ]

    def run(self, **options: Any) -> Array:
        return self.compiled.run([self.feeds["x"]], **options)[0]

    def expected(self) -> Array:
        text = (
            f'<ir_version: 10, opset_import: ["" : 21]> g ({self.inputs}) => ({self.name}[A,B,C,D] y) {{ {self.body} }}'
        )
        model = ReferenceEvaluator(onnx.parser.parse_model(text.replace(self.name, "double")))
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(model.run(None, {k: v.astype(np.float64) for k, v in self.feeds.items()})[0])


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize(("name", "channels"), [("rows as one", 50), ("padded", 50), ("padded", 40)])
def test_residuals_in_three_terms_change_no_bit(name: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(BLOCKS[name], "highest", channels)
    monkeypatch.setattr(packed_images, "ADDED", ())
    wide = Net(BLOCKS[name], "highest", channels)
    assert wide.kept and not net.kept
    for odd in (None, 1e-41, 1e38, np.inf, np.nan):
        if odd is not None:
            net.feeds["x"][1, 5, 3, 4] = wide.feeds["x"][1, 5, 3, 4] = odd
        got = net.run(checked=odd is None)
        np.testing.assert_array_equal(wide.run().view(np.uint32), got.view(np.uint32))
        np.testing.assert_array_equal(net.run(threads=3), got)
        want = net.expected()
        near = np.isfinite(got) & (np.abs(want) < 1e30)
        assert near[0].all() and (near.all() or odd not in (None, 1e-41))
        np.testing.assert_allclose(got[near], want[near], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize(
    ("name", "channels"),
    [("rows as one", 33), ("rows as one", 16), ("padded", 50), ("padded", 32), ("padded", 12), ("of two branches", 50)],
)
def test_residuals_in_one_term(name: str, channels: int) -> None:
    net = Net(BLOCKS[name], "medium", channels)
    got, want = net.run(checked=True), net.expected()
    assert not net.kept
    assert np.linalg.norm(got - want) < 0.012 * np.linalg.norm(want)
    np.testing.assert_array_equal(net.run(threads=3), got)
    net.feeds["x"][0, 2, 1, 1] = np.inf
    got, want = net.run(), net.expected()
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))


@pytest.mark.sliced(2)
@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize(
    ("name", "channels", "paces"),
    [
        ("padded", 17, [0, 0, 4, 0, 0]), ("padded", 50, [0, 0, 4, 0, 0]), ("padded", 64, [8, 2, 4, 2, 0]),
        ("scaled", 17, [4, 0, 4, 0, 0]), ("scaled", 50, [4, 0, 4, 0, 0]), ("scaled", 64, [4, 0, 4, 0, 0]),
        ("rows as one", 32, [16, 16, 16, 16, 0]), ("rows as one", 160, [4, 4, 4, 4, 0]),
        ("rows as one", 544, [2, 2, 2, 2, 0]),
    ],
)  # fmt: skip
def test_pixels_finished_between_products_have_the_same_bits(
    name: str, channels: int, paces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net(BLOCKS[name], "medium", channels)
    statics = [dict(step.spec.statics) for step in net.compiled.steps if step.spec.name == "conv_amx"]
    assert [found["pace"] for found in statics] == paces  # none for the last results, which are NCHW
    monkeypatch.setattr(on_tiles, "pace_of", lambda *_, **__: 0)
    behind = Net(BLOCKS[name], "medium", channels)
    got, want = net.run(checked=True), net.expected()
    assert np.linalg.norm(got - want) < 0.012 * np.linalg.norm(want)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(behind.run(threads=threads), net.run(threads=threads))


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize(
    ("name", "words", "is_dense", "is_line"),
    [
        ("rows as one", [1, 1, 1, 1], [True] * 4, [True] * 4),  # a residual has the result's layout
        ("padded", [1, 1, 2, 1], [True, False, True, False], [False] * 4),  # 3 x 3 taps drop pixels between rows
    ],
)
def test_pixel_tables(name: str, words: list[int], is_dense: list[bool], is_line: list[bool]) -> None:
    """The tables have one word for operands with equal strides, and none for the bias."""
    steps = Net(BLOCKS[name], "medium", 64).compiled.steps
    statics = [dict(step.spec.statics) for step in steps if step.spec.name == "conv_amx"]
    told = [found["places"] for found in statics if found["pace"]]
    assert [one.columns for one in told] == words
    assert [one.is_dense for one in told] == is_dense
    assert [one.is_line for one in told] == is_line


OF_EACH_IMAGE = """
    a0 = Conv(x, w0, b) a = Relu(a0) c = Conv<pads = [1, 1, 1, 1]>(a, v1, b) g = GlobalAveragePool(x)
    d = {} e = {} y = Conv(e, w2, b)"""
OF_EACH_ROW = """
    a0 = Conv(x, w0, b) a = Relu(a0) c = Conv<pads = [1, 1, 1, 1]>(a, v1, b) p = Transpose<perm = [0, 2, 3, 1]>(x)
    t = Constant<value_ints = [2]>() m = ReduceMean(p, t) g = Transpose<perm = [0, 3, 1, 2]>(m)
    d = {} e = {} y = Conv(e, w2, b)"""


@pytest.mark.sliced(3)
@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize("last", ["Relu(d)", "Sigmoid(d)"], ids=["short", "long"])
@pytest.mark.parametrize("first", ["Add(c, g)", "Mul(c, g)"], ids=["added", "times"])
@pytest.mark.parametrize("body", [OF_EACH_IMAGE, OF_EACH_ROW], ids=["of each image", "of each row"])
@pytest.mark.parametrize("side", [4, 8])
def test_operands_that_broadcast_over_pixels(side: int, body: str, first: str, last: str) -> None:
    """Tiles have pixels of several rows and, where a batch is taken for planes, of several images."""
    net = Net(body.format(first, last), "medium", 64, size=(3, 64, side, side))
    net.feeds["x"] += np.arange(3, dtype=np.float32).reshape(3, 1, 1, 1) - np.arange(side, dtype=np.float32)[:, None]
    got, want = net.run(checked=True), net.expected()
    assert np.linalg.norm(got - want) < 0.012 * np.linalg.norm(want)
    for threads in (2, 3):
        np.testing.assert_array_equal(net.run(threads=threads), got)


AS_PLANES = "a0 = Conv(x, w0, b) a = Relu(a0) c = Conv(a, w1, b) d = Conv(a, w2, b) y = Add(c, d)"
A_SLICE = """
    a0 = Conv(x, w0, b) a = Relu(a0) s = Constant<value_ints = [0]>() e = Constant<value_ints = [32]>()
    i = Constant<value_ints = [1]>() h = Slice(a, s, e, i) c = Conv(h, u, b) d = Conv(a, w2, b) f = Add(c, d)
    y = Conv(f, w1, b)"""


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize("precision", ["medium", "high", "highest"])
@pytest.mark.parametrize("body", [AS_PLANES, A_SLICE], ids=["as planes", "a slice"])
def test_readers_of_another_view_of_an_image_get_f32(body: str, precision: str) -> None:
    """The NHWC results of a batch of small images form one image in which each is a plane."""
    net = Net(body, precision, 64, size=(3, 64, 5, 5))
    got, want = net.run(checked=True), net.expected()
    error = {"medium": 0.012, "high": 2e-5, "highest": 1e-6}[precision]
    assert np.linalg.norm(got - want) < error * np.linalg.norm(want)
    for threads in (2, 3):
        np.testing.assert_array_equal(net.run(threads=threads), got)


OF_ITSELF = "a0 = Conv(x, w0, b) a = Relu(a0) d = Conv(a, w1, b) e = Add(d, a) f = Relu(e) y = Conv(f, w2, b)"
SHORTCUT = """
    a0 = Conv(x, w0, b) a = Relu(a0) s0 = Conv(a, w1, b) s = Relu(s0) c0 = Conv(a, w2, b) c = Relu(c0)
    d = Conv(c, w3, b) e = Add(d, s) f = Relu(e) y = Conv(f, w4, b)"""
USED_AGAIN = """
    a0 = Conv(x, w0, b) a = Relu(a0) c0 = Conv(a, w1, b) c = Relu(c0) d = Conv(c, w2, b) e = Add(d, a) f = Relu(e)
    g0 = Conv(f, w3, b) g = Add(g0, a) y = Conv(g, w4, b)"""


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize("channels", [50, 64])
@pytest.mark.parametrize("precision", ["medium", "highest"])
@pytest.mark.parametrize(
    ("body", "count"),
    [(BLOCKS["rows as one"], 1), (OF_ITSELF, 0), (SHORTCUT, 1), (USED_AGAIN, 1)],
    ids=["two blocks", "of itself", "nothing but added", "used again"],
)
def test_a_dead_residual_is_overwritten(
    body: str, count: int, precision: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where other pixels of it are still read, nor where a later step adds it, too. What is but added stays numbers
    unless one term holds it.
    """
    net = Net(body, precision, channels)
    count = 0 if body is SHORTCUT and precision == "highest" else count
    assert sum(_writes_what_it_reads(step) for step in net.compiled.steps) == count
    monkeypatch.setattr(pipeline, "in_place", list)
    apart = Net(body, precision, channels)
    assert not any(map(_writes_what_it_reads, apart.compiled.steps))
    want = apart.run()
    np.testing.assert_array_equal(net.run(checked=True), want)
    for threads in (2, 3):
        np.testing.assert_array_equal(net.run(threads=threads), want)


@pytest.mark.sliced(5)
@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize("channels", [32, 64])
@pytest.mark.parametrize("body", [BLOCKS["rows as one"], BLOCKS["padded"], BLOCKS["scaled"]])
@pytest.mark.parametrize("size", [(1, 19, 23), (2, 6, 9)])
def test_weights_of_short_k_stay_in_tiles(
    body: str, channels: int, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the pixels of squares, which are finished between products as far as they are many enough."""
    shape = (size[0], channels, *size[1:])
    net = Net(body, "medium", channels, size=shape)
    resident = [dict(step.spec.statics)["resident"] for step in net.compiled.steps if step.spec.name == "conv_amx"]
    assert resident.count(channels // 32) >= 2 and {*resident} <= {0, channels // 32}
    got = net.run(checked=True)
    monkeypatch.setattr(on_tiles, "MAX_RESIDENT_STEPS", 0)
    usual = Net(body, "medium", channels, size=shape)
    assert not any(dict(step.spec.statics).get("resident") for step in usual.compiled.steps)
    np.testing.assert_array_equal(usual.run(), got)
    for threads in (2, 3):
        np.testing.assert_array_equal(net.run(threads=threads), got)


@pytest.mark.usefixtures("_wherever_they_can")
def test_nothing_is_written_over_where_steps_may_be_left_out_or_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "in_place", list)
    steps = Net(BLOCKS["rows as one"], "medium", 64).compiled.steps
    assert in_place(steps) != steps
    for other in (replace(steps[0], is_control=True), replace(steps[0], only=())):
        assert in_place([*steps, other]) == [*steps, other]


def _writes_what_it_reads(step: Step) -> bool:
    refs = {name: given.storage for name, given in step.args.items() if isinstance(given, Ref)}
    return not {refs[name] for name in step.writes}.isdisjoint(s for name, s in refs.items() if name not in step.writes)


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize("channels", [16, 32, 50])
def test_packed_results_are_rounded_half_to_even(channels: int) -> None:
    weights = {"w": np.eye(channels).reshape(channels, channels, 1, 1), "b": np.full(channels, 2.0**-8)}
    shape = (2, channels, 7, len(TIES))
    inputs = f"float{list(shape)} x, float[{channels},{channels},1,1] w, float[{channels}] b"
    made = Compiled(
        "z = Conv(x, w, b) y = Conv(z, w)", inputs, "float[A,B,C,D] y", CHIP, precision="medium",
        constants={name: w.astype(np.float32) for name, w in weights.items()},
    )  # fmt: skip
    assert [step.spec.name for step in made.steps][-2:] == ["conv_amx"] * 2
    got = made.run([np.broadcast_to(TIES - 2.0**-8, shape).astype(np.float32)])[0]
    np.testing.assert_array_equal(got, np.broadcast_to(EVEN, shape))


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize("filters", [16, 40, 64])
@pytest.mark.parametrize("kernel", [1, 3])
def test_groups_that_find_their_weights_near(kernel: int, filters: int) -> None:
    """A thread has several groups of squares here, and only the first fetches weights."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 33, 21, 23)), rng.standard_normal((filters, 33, kernel, kernel)) / kernel / 6
    x, w = x.astype(np.float32), w.astype(np.float32)
    body = f"z = Conv<pads = {[kernel // 2] * 4}>(x, w) y = Relu(z)"
    inputs = f"float[1,33,21,23] x, float[{filters},33,{kernel},{kernel}] w"
    made = Compiled(body, inputs, "float[A,B,C,D] y", CHIP, precision="medium", constants={"w": w})
    assert made.steps[-1].spec.name == "conv_amx"
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (float[A,B,C,D] y) {{ {body} }}'
    model = ReferenceEvaluator(onnx.parser.parse_model(text.replace("float", "double")))
    want = np.asarray(model.run(None, {"x": x.astype(np.float64), "w": w.astype(np.float64)})[0])
    got = made.run([x], checked=True)[0]
    assert np.linalg.norm(got - want) < 0.004 * np.linalg.norm(want)
    for threads in (1, 2):
        np.testing.assert_array_equal(made.run([x], threads=threads)[0], got)


@pytest.mark.usefixtures("_wherever_they_can")
def test_residuals_of_two_terms_are_f32_unless_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Net(BLOCKS["padded"], "high").kept
    half = Net(BLOCKS["padded"], "highest", dtype="float16")
    assert not half.kept
    np.testing.assert_allclose(half.run().astype("f"), half.expected(), rtol=4e-3, atol=4e-3)
    monkeypatch.setattr(packed_images, "ADDED", (1, 2, 3))
    net = Net(BLOCKS["padded"], "high")
    assert not net.kept
    np.testing.assert_allclose(net.run(checked=True), net.expected(), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_wherever_they_can")
@pytest.mark.parametrize("precision", ["medium", "highest"])
def test_images_with_other_readers_are_written_in_f32(precision: str) -> None:
    body = BLOCKS["rows as one"].replace("y = Relu(i)", "j = Relu(i) s = ReduceMean<keepdims = 1>(f) y = Mul(j, s)")
    net = Net(body, precision)
    assert len(net.kept) >= 1
    bound = 1e-5 if precision == "highest" else 0.02
    want = net.expected()
    assert np.linalg.norm(net.run() - want) < bound * np.linalg.norm(want)
