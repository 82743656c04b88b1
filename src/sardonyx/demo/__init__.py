"""The main job on a trained model, step by step: what ``sardonyx demo`` shows.

The model reads handwritten digits; ``demo/train.py`` of the repository trained it, without the images here.
"""

from __future__ import annotations

from pathlib import Path

MODEL = Path(__file__).with_name("digits.onnx")
HELD_OUT = Path(__file__).with_name("heldout.npz")
"""``images``, uint8 of [count, 8, 8] from 0 to 16, and ``labels``."""
