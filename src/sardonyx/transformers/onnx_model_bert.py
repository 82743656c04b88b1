"""``BertOnnxModel``, which optimum makes of files to count their fused operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.transformers.onnx_model import OnnxModel

if TYPE_CHECKING:
    import onnx

    from sardonyx.transformers.fusion_options import FusionOptions

__all__ = ["BertOnnxModel"]


class BertOnnxModel(OnnxModel):
    """A model of BERT's kind."""

    def __init__(self, model: onnx.ModelProto, num_heads: int = 0, hidden_size: int = 0) -> None:
        super().__init__(model, num_heads, hidden_size, model_type="bert")

    def optimize(self, options: FusionOptions | None = None, add_dynamic_axes: bool = False) -> None:
        """Fuse the graph into onnxruntime's operators; ``add_dynamic_axes`` names the dimensions of its inputs."""
        from sardonyx.transformers.optimizer import optimize_by_fusion

        self.model = optimize_by_fusion(self.model, "bert", self.num_heads, self.hidden_size, options).model
        if add_dynamic_axes:
            self.use_dynamic_axes()
