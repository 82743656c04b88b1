"""Lets silero-vad look for a voice-like sound between two silences."""

import numpy as np
import torch
from silero_vad import get_speech_timestamps, load_silero_vad

torch.set_num_threads(1)
RATE = 16_000
t = np.arange(4 * RATE) / RATE
voice = sum(np.sin(2 * np.pi * 130 * k * t + k) / k for k in range(1, 30)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
sound = np.where((t > 1) & (t < 3), 0.2 * voice, 0.0) + np.random.default_rng(0).standard_normal(t.size) * 1e-3
wave = torch.tensor(sound, dtype=torch.float32)
model = load_silero_vad(onnx=True)
print(get_speech_timestamps(wave, model, threshold=0.3))
model.reset_states()
print([round(float(model(wave[i : i + 512], RATE)), 4) for i in range(0, 512 * 60, 512)])
