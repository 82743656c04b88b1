"""The exception tree, and the guard that keeps other exceptions in."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import EngineError, Fail, InvalidArgument, Reporting
from sardonyx.lower.sizes import Refused
from tests.session.models import MUL, X, model


def test_foreign_exceptions_become_engine_errors() -> None:
    with pytest.raises(EngineError) as caught, Reporting("lower", "node 'a'"):
        raise IndexError("tuple index out of range")
    assert isinstance(caught.value.__cause__, IndexError)
    said = str(caught.value)
    assert said.startswith("lower failed with IndexError: tuple index out of range; at node 'a'")
    assert "report" in said


@pytest.mark.parametrize("error", [InvalidArgument("no"), MemoryError(), UserWarning("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("outermost", [False, True])
def test_ours_and_python_s_own_pass(error: BaseException, outermost: bool) -> None:
    with pytest.raises(type(error)) as caught, Reporting("run", outermost=outermost):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("error", [Refused("no rule"), OverflowError("65 bits")])
def test_internally_caught_errors_pass_all_but_the_outermost(error: Exception) -> None:
    with pytest.raises(type(error)), Reporting("lower"):
        raise error
    with pytest.raises(EngineError), Reporting("building", outermost=True):
        raise error


def test_the_operating_system_s_errors_are_no_defects() -> None:
    with pytest.raises(Fail, match="No space left") as caught, Reporting("optimize"):
        raise OSError(28, "No space left on device")
    assert "report" not in str(caught.value)


def test_errors_tell_the_outermost_phase_in_which_they_were_raised() -> None:
    with pytest.raises(InvalidArgument) as caught, Reporting("the run", outermost=True), Reporting("lower"):
        raise InvalidArgument("no")
    assert caught.value.phase == pickle.loads(pickle.dumps(caught.value)).phase == "the run"
    with pytest.raises(EngineError) as defect, Reporting("the run", outermost=True):
        raise KeyError("lost")
    assert defect.value.phase == "the run" and InvalidArgument("no").phase is None


def test_a_defect_in_a_pass_names_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.optimize import manager, pipelines

    assert pipelines, "importing it registers the passes"

    def broken(graph: object, log: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setitem(manager.PASSES, "FoldConstants", broken)
    with pytest.raises(EngineError, match=r"optimize failed with ZeroDivisionError.*pass FoldConstants"):
        sardonyx.InferenceSession(model(MUL).SerializeToString())


@pytest.mark.usefixtures("unverified")
def test_a_rule_that_fails_leaves_its_node_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.lower import lowering, rules

    assert rules, "importing them registers the rules"

    def broken(low: object, node: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setitem(lowering.RULES, ("", lowering.OTHER), broken)
    session = sardonyx.InferenceSession(model(MUL).SerializeToString())
    weights = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(session.run(None, {"X": X})[0], X * weights)
    assert "IndexError" in str(session.explain())
    monkeypatch.setenv("SARDONYX_VERIFY", "1")
    with pytest.raises(EngineError, match=r"lower failed with IndexError.*times"):
        sardonyx.InferenceSession(model(MUL).SerializeToString())


@pytest.mark.parametrize("times", [1, 3])
def test_a_defect_in_a_run_raises_engine_error(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    session = sardonyx.InferenceSession(model(MUL).SerializeToString())
    for _ in range(times - 1):
        session.run(None, {"X": X})

    def broken(*args: object, **more: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(session._sess._engine, "run", broken)
    monkeypatch.setattr(session._sess, "_planned", broken if times > 1 else None)
    with pytest.raises(EngineError, match="the run failed with IndexError"):
        session.run(None, {"X": X})
