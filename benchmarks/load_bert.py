"""How long, and how much memory, it takes to load BERT-base (435 MB of weights) until the first weight is used.

    python benchmarks/load_bert.py                     build the model once into the cache folder, then measure
    python benchmarks/load_bert.py --large             the same on a model of over 2 GB with external data
    python benchmarks/load_bert.py --model FILE.onnx   measure another model

Building BERT needs the `bench` extra (torch, transformers). Every measurement is taken in a fresh process, after the
packages involved are imported, with the file in the page cache, and the contestants take turns. Memory is told apart:
what the process took for itself, and pages of mapped files, which the system shares and can drop.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("SARDONYX_BENCH_CACHE", Path.home() / ".cache" / "sardonyx-bench"))
SEED = 0

MEMORY = """
import json, sys, time
def memory():
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return [int(fields[name].split()[0]) * 1024 / 1e6 for name in ("RssAnon", "RssFile")]
"""
CONTESTANTS = {
    "sardonyx": """
import sardonyx.dtypes, onnx, ml_dtypes
from sardonyx.model.load import load
def go(path): return load(path)
""",
    "sardonyx session": """
import sardonyx, onnx, ml_dtypes
def go(path): return sardonyx.InferenceSession(path)
""",
    "onnx.load": """
import onnx
def go(path): return onnx.load(path)
""",
    "onnxruntime session": """
import onnxruntime
def go(path): return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
""",
}
MEASURE = """
before, start = memory(), time.perf_counter()
kept = go(sys.argv[1])
seconds, after = time.perf_counter() - start, memory()
print(json.dumps({"seconds": seconds, "anonymous_mb": after[0] - before[0], "mapped_mb": after[1] - before[1]}))
"""


def build_bert(path: Path) -> None:
    """BERT-base with random weights from a fixed seed; batch and sequence length are free."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(SEED)
    model = BertModel(BertConfig(attn_implementation="eager")).eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.randint(0, model.config.vocab_size, (2, 16))
    path.parent.mkdir(parents=True, exist_ok=True)
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence", max=512)
    torch.onnx.export(
        model,
        (ids, torch.ones_like(ids), torch.zeros_like(ids)),
        path,
        input_names=names,
        output_names=["last_hidden_state", "pooler_output"],
        dynamic_shapes=[{0: batch, 1: sequence}] * 3,
        external_data=False,
        dynamo=True,
    )


def build_large(path: Path) -> None:
    """Nine 256 MB matrices in a sparse data file next to the model: 2.3 GB of weights that take no room on the disk."""
    import onnx
    from onnx import TensorProto, helper

    path.parent.mkdir(parents=True, exist_ok=True)
    side, count = 8192, 9
    nbytes = side * side * 4
    data = path.with_suffix(".data")
    with data.open("wb") as file:
        file.truncate(nbytes * count)
    weights, nodes = [], []
    for i in range(count):
        weight = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[side, side])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", data.name), ("offset", i * nbytes), ("length", nbytes)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]))
    x = helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", side])
    y = helper.make_tensor_value_info(f"x{count}", TensorProto.FLOAT, ["n", side])
    graph = helper.make_graph(nodes, "large", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def measure(contestant: str, path: Path) -> dict[str, float]:
    code = MEMORY + CONTESTANTS[contestant] + MEASURE
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="measure this model")
    parser.add_argument("--large", action="store_true", help="measure a model of over 2 GB with external data")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--build-only", action="store_true", help="build the model and stop")
    args = parser.parse_args()

    path = args.model or CACHE / ("large.onnx" if args.large else "bert-base.onnx")
    if not path.exists():
        if args.model:
            parser.error(f"{path} is not there")
        print(f"building {path}")
        (build_large if args.large else build_bert)(path)
    if args.build_only:
        return
    files = [f for f in (path, path.with_suffix(".data")) if f.exists()]
    for each in files:
        with each.open("rb") as file:
            while file.read(1 << 24):
                pass

    results: dict[str, list[dict[str, float]]] = {}
    absent: dict[str, str] = {}
    for _ in range(args.rounds):
        for contestant in CONTESTANTS:
            if contestant in absent:
                continue
            try:
                figures = measure(contestant, path)
            except RuntimeError as error:
                absent[contestant] = str(error)
            else:
                results.setdefault(contestant, []).append(figures)
    print(f"{path.name}, {sum(f.stat().st_size for f in files) / 1e6:.0f} MB, {args.rounds} rounds")
    print(f"{'':24}{'median s':>10}{'min s':>10}{'max s':>10}{'taken MB':>10}{'mapped MB':>11}")
    for contestant, rounds in results.items():
        seconds = [r["seconds"] for r in rounds]
        taken, mapped = (statistics.median(r[key] for r in rounds) for key in ("anonymous_mb", "mapped_mb"))
        spread = (statistics.median(seconds), min(seconds), max(seconds))
        print(f"{contestant:24}" + "".join(f"{s:10.3f}" for s in spread) + f"{taken:10.0f}{mapped:11.0f}")
    for contestant, reason in absent.items():
        print(f"{contestant:24}{reason}")
    if args.json:
        args.json.write_text(json.dumps({"model": path.name, "results": results, "absent": absent}, indent=1))


if __name__ == "__main__":
    main()
