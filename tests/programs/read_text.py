"""Writes two lines onto an image and lets RapidOCR, which runs three models, read them."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

image = Image.new("RGB", (480, 160), "white")
draw = ImageDraw.Draw(image)
font = ImageFont.load_default(40)
draw.text((20, 20), "Sardonyx 2026", fill="black", font=font)
draw.text((20, 90), "hello world", fill="black", font=font)
found, _ = RapidOCR()(np.array(image))
for box, text, score in found:
    print(text, round(float(score), 3), np.round(box).tolist())
