"""Settings that make a model faster on this machine: tried one by one, measured, and kept where they help.

    from sardonyx import tune
    tuning = tune.tune_model("model.onnx")
    print(tuning)                              # what was tried, before and after
    tuning.config.save("model.json")

    options = sardonyx.SessionOptions()
    options.load_config("model.json")          # in the program that runs the model

What is tried follows from the findings of ``sardonyx.profile.diagnose`` (``candidates``); ``setups`` runs a model under
given settings, ``tuning`` compares and decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.lazy import attributes

_HOMES = {"tune_model": "tuning", "Trial": "records", "Tuning": "records"}

__all__ = [*_HOMES]  # noqa: PLE0604

if TYPE_CHECKING:
    from sardonyx.tune.records import Trial as Trial
    from sardonyx.tune.records import Tuning as Tuning
    from sardonyx.tune.tuning import tune_model as tune_model

__getattr__, __dir__ = attributes(__name__, _HOMES)
