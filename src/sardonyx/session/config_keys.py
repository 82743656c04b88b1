"""Every session and run configuration key of onnxruntime, and what it does here.

A key maps to its effect in Sardonyx, or to None if it is known and has no effect. Setters accept any key; ``review``
checks them when a session or a run uses them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from sardonyx.errors import InvalidArgument
from sardonyx.session import log

DOUBLES_KEY = "session.float64_as_float32"

SESSION_KEYS: dict[str, str | None] = {
    "session.allow_released_opsets_only": None,
    "session.baseline_code": "0: all kernels are optimized before the session is ready, not after its first run",
    "session.cache": "0: the compiled model is neither read from the cache nor written to it",
    "session.collect_node_memory_stats_to_file": None,
    "session.compile_only": None,
    "session.debug_layout_transformation": None,
    "session.disable_aot_function_inlining": None,
    "session.disable_cpu_ep_fallback": "creation fails when a node is left to the CPU provider",
    "session.disable_double_qdq_remover": None,
    "session.disable_model_compile": None,
    "session.disable_prepacking": None,
    "session.disable_qdq_constant_folding": None,
    "session.disable_quant_qdq": None,
    "session.dynamic_block_base": None,
    "session.enable_dq_matmulnbits_fusion": None,
    "session.enable_moe_expert_counting": None,
    "session.enable_moe_expert_statistics": None,
    "session.enable_quant_qdq_cleanup": None,
    "session.enable_saved_runtime_optimizations": None,
    "session.fail_on_suboptimal_compiled_model": None,
    DOUBLES_KEY: "1: values of float64 are computed in float32; inputs and outputs keep their types",
    "session.force_spinning_stop": "threads sleep as soon as a run ends",
    "session.function_expansion_byte_limit": None,
    "session.function_expansion_node_limit": None,
    "session.gqa_value_layout": None,
    "session.graph_optimizations_loop_level": None,
    "session.inter_op.allow_spinning": None,
    "session.inter_op.spin_backoff_max": None,
    "session.inter_op.spin_duration_us": None,
    "session.intra_op.allow_spinning": "0: threads sleep at once where they wait",
    "session.intra_op.spin_backoff_max": None,
    "session.intra_op.spin_duration_us": "how long threads spin where they wait; 200 in a run (Arm: 20), 20 after it",
    "session.intra_op_thread_affinities": "processors of each thread but the caller's",
    "session.layer_assignment_settings": None,
    "session.kernel.forbid": "kernel variants that are never chosen, by name (conv.winograd_nhwc), split at , or ;",
    "session.kernel.force": "kernel variants that are chosen wherever they support a group, whether they pay or not",
    "session.load_model_format": "ORT is refused; ONNX is what is read",
    "session.max_shape_override": None,
    "session.model_external_initializers_file_folder_path": "where external data lies for a model given as bytes",
    "session.moe_expert_counter_alpha": None,
    "session.moe_expert_counter_beta": None,
    "session.moe_expert_counter_state_file": None,
    "session.name_based_layer_assignment": None,
    "session.node_partition_config_file": None,
    "session.optimized_model_external_initializers_file_name": "large weights of the saved model go to this file",
    "session.optimized_model_external_initializers_min_size_in_bytes": "how large",
    "session.prepack.enable_parallel": None,
    "session.qdq_matmulnbits_accuracy_level": None,
    "session.qdq_matmulnbits_block_size": None,
    "session.qdqisint8allowed": None,
    "session.record_ep_graph_assignment_info": "allows get_provider_graph_assignment_info()",
    "session.resource_cuda_partitioning_settings": None,
    "session.save_external_prepacked_constant_initializers": None,
    "session.save_model_format": "ORT is refused; ONNX is what is written",
    "session.set_denormal_as_zero": None,
    "session.strict_shape_type_inference": None,
    "session.strict_workspace_verification": None,
    "session.use_device_allocator_for_initializers": None,
    "session.use_env_allocators": None,
    "session.use_external_initializer_file_buffers_directly": None,
    "session.use_memory_mapped_ort_model": None,
    "session.use_ort_model_bytes_directly": None,
    "session.use_ort_model_bytes_for_initializers": None,
    "session.x64quantprecision": None,
    "optimization.constant_folding_max_output_size_in_bytes": None,
    "optimization.disable_specified_optimizers": "the named passes are left out; names are split at , or ;",
    "optimization.enable_cast_chain_elimination": None,
    "optimization.enable_gelu_approximation": None,
    "optimization.enable_memory_probe_recompute_config": None,
    "optimization.memory_optimizer_config": None,
    "optimization.minimal_build_optimizations": None,
    "ep.context_embed_mode": None,
    "ep.context_enable": None,
    "ep.context_file_path": None,
    "ep.context_model_external_initializers_file_name": None,
    "ep.context_node_name_prefix": None,
    "ep.context_source_model_path": None,
    "ep.cuda.fpa_intb_gemm": None,
    "ep.cuda.fpa_intb_profile_m": None,
    "ep.cuda.gqa_workspace_max_total_sequence_length": None,
    "ep.dml.disable_graph_fusion": None,
    "ep.dml.enable_graph_serialization": None,
    "ep.enable_weightless": None,
    "ep.nnapi.partitioning_stop_ops": None,
    "ep.share_ep_contexts": None,
    "ep.stop_share_ep_contexts": None,
    "mlas.disable_kleidiai": None,
    "mlas.enable_gemm_fastmath_arm64_bfloat16": None,
    "mlas.kleidiai.conv_igemm_max_work": None,
    "mlas.nchwc_depthwise_sliding": None,
    "mlas.nchwc_pointwise_conv_max_input_channel_batch": None,
    "mlas.qnbit.force_fp32": None,
    "mlas.use_lut_gemm": None,
}

RUN_KEYS: dict[str, str | None] = {
    "memory.enable_memory_arena_shrinkage": "cpu:0 gives memory back after a run that no other run has",
    "disable_synchronize_execution_providers": None,
    "gpu_graph_id": None,
    "qnn.htp_perf_mode": None,
    "qnn.htp_perf_mode_post_run": None,
    "qnn.lora_config": None,
    "qnn.rpc_control_latency": None,
}

PROVIDER_WORDS = (
    "acl", "azure", "cann", "coreml", "cpu", "cuda", "dml", "dnnl", "js", "migraphx", "nnapi", "nvtensorrtrtx",
    "openvino", "qnn", "rknpu", "tensorrt", "vitisai", "vsinpu", "webgpu", "webnn", "xnnpack",
)  # fmt: skip
"""Keys ``ep.<word>.<option>`` belong to a provider and are not checked here."""


MIN_SIMILARITY = 0.85
"""Least similarity of a key to a known one to be taken for a typo: keys share long common words."""

_warned: set[str] = set()


def review(
    config: Mapping[str, str], known: Mapping[str, str | None], *, strict: bool = False, stacklevel: int = 3
) -> None:
    """Warn about unknown keys, once per key and process (an error if ``strict``); log once that a known key has no
    effect.
    """
    for key in config:
        if key in known or _is_providers(key):
            if known.get(key) is None:
                log.emit_once(log.INFO, f"the configuration key {key!r} has no effect in Sardonyx")
            continue
        if key in _warned and not strict:
            continue
        hint = _suggestion(key, known)
        if strict:
            raise InvalidArgument(f"no configuration key is called {key!r}", hint=hint)
        _warned.add(key)
        warnings.warn(
            f"no configuration key is called {key!r}; it is ignored" + (f"; {hint}" if hint else ""),
            UserWarning,
            stacklevel=stacklevel,
        )


def _suggestion(key: str, known: Mapping[str, str | None]) -> str | None:
    """The known key that this one probably misspells, or a key of the other kind of options."""
    import difflib

    for keys, whose in ((known, ""), (SESSION_KEYS, " of SessionOptions"), (RUN_KEYS, " of RunOptions")):
        near = difflib.get_close_matches(key.lower(), [k.lower() for k in keys], n=1, cutoff=MIN_SIMILARITY)
        if near:
            found = next(k for k in keys if k.lower() == near[0])
            return f"did you mean {found!r}{whose}?"
    return None


def _is_providers(key: str) -> bool:
    area, _, rest = key.partition(".")
    word, _, option = rest.partition(".")
    return area == "ep" and bool(option) and word in PROVIDER_WORDS
