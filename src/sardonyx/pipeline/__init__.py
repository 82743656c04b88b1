"""Pre- and post-processing as part of a model.

    from sardonyx import pipeline

    model = pipeline.add(
        "classifier.onnx",
        before=[pipeline.Resize(256), pipeline.CenterCrop(224), pipeline.Normalize(MEAN, STD)],
        after=[pipeline.Softmax(), pipeline.TopK(5)],
    )

takes a decoded image, (height, width, 3) bytes of any size, and returns the five best classes. Steps are written as
ONNX
"""

from sardonyx.pipeline.add import add
from sardonyx.pipeline.boxes import NonMaxSuppression, ToImage, YoloBoxes, YoloxBoxes
from sardonyx.pipeline.images import CenterCrop, Image, Letterbox, Normalize, Resize, SwapChannels
from sardonyx.pipeline.scores import ArgMax, Flatten, Labels, Softmax, TopK

__all__ = [
    "ArgMax",
    "CenterCrop",
    "Flatten",
    "Image",
    "Labels",
    "Letterbox",
    "NonMaxSuppression",
    "Normalize",
    "Resize",
    "Softmax",
    "SwapChannels",
    "ToImage",
    "TopK",
    "YoloBoxes",
    "YoloxBoxes",
    "add",
]
