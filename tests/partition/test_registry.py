"""Providers that come from outside: registered in the process, or found as entry points of installed packages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.errors import EPFail, Fail, InvalidArgument
from sardonyx.ir.graph import Graph, Node
from sardonyx.partition import registry
from sardonyx.partition.provider import Claims, Executable, Part, RunContext
from sardonyx.providers.reference import ReferenceProvider
from tests.session.models import CHAIN, MUL, X, serialized

ACME, CPU = "AcmeExecutionProvider", "CPUExecutionProvider"


class Acme:
    """Claims Mul, and proves that it ran by counting."""

    name = ACME
    runs = 0

    def __init__(self, device: str = "0") -> None:
        self.device = device

    def probe(self) -> str | None:
        return None

    def claims(self, graph: Graph) -> Claims:
        return {n: None if n.op_type == "Mul" else "it is not a Mul" for n in graph.nodes}

    def prepare(self, graph: Graph, owned: list[Node]) -> None: ...

    def compile(self, part: Part) -> Executable:
        program = ReferenceProvider().compile(part)

        class Counted:
            def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
                Acme.runs += 1
                return program.run(args, context)

        return Counted()


class Absent(Acme):
    def probe(self) -> str | None:
        return "there is no Acme card"


class Broken(Acme):
    def probe(self) -> str | None:
        raise OSError("no driver")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(Acme, "runs", 0)
    yield
    registry._installed.cache_clear()
    registry._loaded.cache_clear()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """An installed distribution with a provider."""
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sardonyx.providers]\n{ACME} = {target}\n")
    monkeypatch.syspath_prepend(str(folder))
    registry._installed.cache_clear()


def test_a_registered_provider_runs_its_nodes() -> None:
    registry.register(Acme)
    assert ort.get_available_providers() == [ACME, CPU] and ort.get_all_providers()[0] == ACME
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = ort.InferenceSession(serialized(MUL), options, providers=[(ACME, {"device": 1}), CPU])
    (y,) = session.run(None, {"X": X})
    np.testing.assert_array_equal(y, ort.InferenceSession(serialized(MUL)).run(None, {"X": X})[0])
    assert Acme.runs == 1
    assert session.get_providers() == [ACME, CPU]
    assert session.get_provider_options() == {ACME: {"device": "1"}, CPU: {}}
    assert [s.ep_name for s in session.get_provider_graph_assignment_info()] == [ACME]


def test_providers_of_the_options_are_used() -> None:
    registry.register(Acme())
    options = ort.SessionOptions()
    options.add_provider(ACME, {})
    ort.InferenceSession(serialized(MUL), options).run(None, {"X": X})
    assert Acme.runs == 1


def test_an_installed_provider_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "tests.partition.test_registry:Acme")
    session = ort.InferenceSession(serialized(MUL), providers=[ACME])
    session.run(None, {"X": X})
    assert Acme.runs == 1 and session.get_providers() == [ACME, CPU]


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("tests.partition.test_registry:Absent", "there is no Acme card"),
        ("tests.partition.test_registry:Broken", "OSError: no driver"),
        ("acme_that_is_missing:Provider", "No module named 'acme_that_is_missing'"),
        ("tests.partition.test_registry:install", "name it is registered under"),
    ],
)
def test_an_unusable_provider_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, sentence: str
) -> None:
    install(tmp_path, monkeypatch, target)
    with pytest.warns(UserWarning, match=sentence):
        session = ort.InferenceSession(serialized(MUL), providers=[ACME])
    assert session.get_providers() == [CPU] and ACME not in ort.get_available_providers()
    with pytest.warns(UserWarning), pytest.raises(EPFail, match="is not available"):
        ort.InferenceSession(serialized(MUL), providers=[ACME], strict=True)


def test_nothing_is_loaded_for_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "tests.partition.test_registry:Acme")
    choices: list[Any] = [None, [CPU], [(CPU, {})]]
    for providers in choices:
        ort.InferenceSession(serialized(MUL), providers=providers)
    assert registry._loaded.cache_info().currsize == 0


def test_fallback_to_the_cpu_is_forbidden_where_it_would_happen() -> None:
    registry.register(Acme)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    ort.InferenceSession(serialized(MUL), options, providers=[ACME])
    with pytest.raises(Fail, match="explicitly disabled by the user"):
        ort.InferenceSession(serialized(CHAIN), options, providers=[ACME])


def test_wrong_uses() -> None:
    class Nameless(Acme):
        name = ""

    for wrong in (Nameless, object()):
        with pytest.raises(InvalidArgument, match="a name of its own"):
            registry.register(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        registry.unregister(ACME)
    registry.register(Acme)
    with pytest.raises(EPFail, match="does not take these options"):
        ort.InferenceSession(serialized(MUL), providers=[(ACME, {"colour": "red"})])
    registry.register(Acme())
    with pytest.raises(EPFail, match="takes no options"):
        ort.InferenceSession(serialized(MUL), providers=[(ACME, {"device": "1"})])
