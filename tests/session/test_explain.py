"""``explain()`` lists what the optimizer and the providers rewrote and where they declined; ``explain(stage="cpu")``
names the kernels of every compiled part and the variants that were chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.providers.cpu.codegen.jit import statistics
from sardonyx.providers.cpu.compile import _kernels_timed
from sardonyx.providers.cpu.provider import CpuProvider


def test_every_step_of_a_model_is_named(root: Path) -> None:
    session = sardonyx.InferenceSession(root / "demo" / "digits.onnx")
    steps = session.explain(stage="cpu")
    (rows,) = steps.parts
    assert all(row.kernel and row.nodes for row in rows)
    convolutions = [row for row in rows if row.kernel.startswith("conv")]
    assert len(convolutions) == 3 and all(row.variant for row in convolutions)
    text = str(steps)
    assert text.startswith(f"part 0: {len(rows)} steps") and "Conv node 'conv0'" in text


def test_a_session_from_the_cache_names_them_too(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    first, second = (sardonyx.InferenceSession(root / "demo" / "digits.onnx").explain(stage="cpu") for _ in range(2))
    assert first == second


def test_phases_of_a_start_are_listed_inside_those_that_they_are_part_of(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    explanation = sardonyx.InferenceSession(root / "demo" / "digits.onnx").explain()
    phases = explanation.phases
    assert list(phases)[:6] == ["import", "load", "normalize", "optimize", "partition", "compile"]
    inside = sum(s for name, s in phases.items() if name.startswith("compile/") and name.count("/") == 1)
    assert 0 < phases["compile/kernels"] <= inside <= phases["compile"]
    lines = [line.split(maxsplit=1)[1] for line in str(explanation).split("\nseconds\n")[1].splitlines()]
    kernels = lines.index("kernels")
    assert lines.index("compile") < lines.index("lower") < kernels
    assert lines[kernels + 1 : kernels + 3] == ["written, all threads", "translated by LLVM, all threads"]


def test_kernels_count_although_constants_ask_for_others() -> None:
    """Weights that their layout cannot represent are found while kernels are compiled; another round follows."""
    provider = CpuProvider()
    with pytest.raises(OverflowError), _kernels_timed(provider):
        statistics.translated.append(0.25)
        raise OverflowError
    assert provider.seconds["compile/kernels/translated by LLVM, all threads"] >= 0.25


def test_other_stages_are_refused(root: Path) -> None:
    with pytest.raises(InvalidArgument, match="expected: cpu; got: gpu"):
        sardonyx.InferenceSession(root / "demo" / "digits.onnx").explain(stage="gpu")


HEADS = "a = Conv(x, u) b = Conv(x, v) d = Conv(x, w)"
UPSAMPLED = 'r = Resize<mode="linear">(x, , s) c = Concat<axis=1>(r, z) y = Conv(c, w)'


def _model(body: str, outputs: str, **weights: tuple[int, ...]) -> bytes:
    head = f'<ir_version: 10, opset_import: ["" : 21]> g (float[1,6,4,4] x, float[1,3,8,8] z, bool k) => ({outputs})'
    model = onnx.parser.parse_model(f"{head} {{ {body} }}")
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        tensor = onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        model.graph.initializer.append(tensor)
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")
    model.graph.initializer.append(scales)
    return bytes(model.SerializeToString())


def test_rewrites_of_the_provider_are_explained() -> None:
    model = _model(HEADS, "float[] a, float[] b, float[] d", u=(1, 6, 1, 1), v=(2, 6, 1, 1), w=(3, 6, 1, 1))
    explained = sardonyx.InferenceSession(model).explain()
    assert explained.report.count()["JoinConvs"] == 1
    assert "JoinConvs: 3 Conv -> Conv + Split" in str(explained)


@pytest.mark.parametrize(
    ("body", "outputs", "weights", "reason"),
    [
        (
            HEADS, "float[] a, float[] b, float[] d", {"u": (1, 6, 1, 1), "v": (2, 6, 1, 1), "w": (3, 6, 3, 3)},
            "3 are needed; Conv node -> 'd' has another window or other attributes",
        ),
        (
            UPSAMPLED, "float[] y", {"w": (4, 9, 1, 1)},
            "ConvolveBeforeResize left Conv node -> 'y' alone: the Resize interpolates (r)",
        ),
    ],
)  # fmt: skip
def test_declined_rewrites_of_the_provider_are_explained(
    body: str, outputs: str, weights: dict[str, tuple[int, ...]], reason: str
) -> None:
    explained = sardonyx.InferenceSession(_model(body, outputs, **weights)).explain()
    assert any(reason in str(d) for d in explained.report.declined)
    assert reason in str(explained).split("declined\n")[1]


def test_rewrites_in_control_flow_bodies_are_explained() -> None:
    branch = f"() => (float[] e, float[] d) {{ q = Neg(x) {HEADS.replace('(x', '(q')} e = Add(a, b) }}"
    body = f"o = Conv(z, o_w) e, d = If(k) <then_branch = t {branch}, else_branch = f {branch}>"
    model = _model(
        body, "float[] e, float[] d, float[] o", u=(1, 6, 1, 1), v=(1, 6, 1, 1), w=(3, 6, 1, 1), o_w=(2, 3, 1, 1)
    )
    explained = sardonyx.InferenceSession(model).explain()
    assert explained.report.count()["JoinConvs"] == 2
    assert str(explained).count("JoinConvs: 3 Conv -> Conv + Split") == 2


def test_rewrites_of_a_provider_survive_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    model = _model(HEADS, "float[] a, float[] b, float[] d", u=(1, 6, 1, 1), v=(2, 6, 1, 1), w=(3, 6, 1, 1))
    path = tmp_path / "heads.onnx"
    path.write_bytes(model)
    for _ in range(2):
        assert sardonyx.InferenceSession(path).explain().report.count()["JoinConvs"] == 1
