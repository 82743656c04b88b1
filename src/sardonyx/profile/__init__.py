"""Where the time of a model goes, and what to change: ``profile_model``, ``read_trace`` and ``diagnose``.

    from sardonyx import profile
    found = profile.profile_model("model.onnx")
    print(found)                           # the kernels that take longest
    print(profile.diagnose("model.onnx"))  # what is wrong, the evidence, and the setting that fixes it

A ``Profile`` is read from the trace that a session writes, so one of a running program tells as much as one made here.
``records`` are its fields, ``rules`` the problems that ``diagnosis`` looks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.lazy import attributes

_HOMES = {
    "profile_model": "measure",
    "read_trace": "read",
    **dict.fromkeys(("KernelUse", "NodeUse", "Profile", "RunUse"), "records"),
    **dict.fromkeys(("Diagnosis", "diagnose"), "diagnosis"),
    **dict.fromkeys(("Finding", "Fix"), "findings"),
}

__all__ = [*_HOMES]  # noqa: PLE0604

if TYPE_CHECKING:
    from sardonyx.profile.diagnosis import Diagnosis as Diagnosis
    from sardonyx.profile.diagnosis import diagnose as diagnose
    from sardonyx.profile.findings import Finding as Finding
    from sardonyx.profile.findings import Fix as Fix
    from sardonyx.profile.measure import profile_model as profile_model
    from sardonyx.profile.read import read_trace as read_trace
    from sardonyx.profile.records import KernelUse as KernelUse
    from sardonyx.profile.records import NodeUse as NodeUse
    from sardonyx.profile.records import Profile as Profile
    from sardonyx.profile.records import RunUse as RunUse

__getattr__, __dir__ = attributes(__name__, _HOMES)
