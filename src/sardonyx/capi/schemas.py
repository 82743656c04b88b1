"""Operator schemas, and the kernels that the CPU provider has for them."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from sardonyx.records import Record

LATEST = (1 << 31) - 1


class KernelDef(Record):
    """An operator that a provider can run, over a range of versions."""

    op_name: str
    domain: str
    provider: str
    version_range: tuple[int, int]
    type_constraints: dict[str, list[str]] = field(hash=False)


def get_all_operator_schema() -> list[Any]:
    """Every version of every operator, as onnx describes them."""
    import onnx

    return list(onnx.defs.get_all_schemas_with_history())


def get_all_opkernel_def() -> list[KernelDef]:
    """Every operator that is not deprecated: the reference provider runs them all."""
    from sardonyx.partition.registry import CPU

    schemas = get_all_operator_schema()
    versions: dict[tuple[str, str], list[int]] = {}
    for s in schemas:
        versions.setdefault((s.domain, s.name), []).append(s.since_version)
    kernels = []
    for s in schemas:
        if s.deprecated:
            continue
        later = [v for v in versions[s.domain, s.name] if v > s.since_version]
        kernels.append(
            KernelDef(
                s.name,
                s.domain,
                CPU,
                (s.since_version, min(later) - 1 if later else LATEST),
                {c.type_param_str: list(c.allowed_type_strs) for c in s.type_constraints},
            )
        )
    return kernels


def get_registered_ep_kernel_defs(ep_name: str) -> list[KernelDef]:
    """The kernels of one provider."""
    return [k for k in get_all_opkernel_def() if k.provider == ep_name]
