"""Second starts with states: the versions that append to them in place come from the cache."""

from __future__ import annotations

import marshal
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx import cache, entries, folders
from sardonyx.errors import SardonyxError
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.program import constants
from sardonyx.session import cache_writer, part_entries
from sardonyx.session.compiled_cache import CachedEngine
from tests.comparing import assert_same
from tests.session.test_state import by_copying, decoder, in_place, tokens

pytestmark = pytest.mark.usefixtures("unverified")

Array = np.ndarray[Any, Any]
TOKENS = tokens(0, [5, 1, 1, 3, 1])
CAPACITY = 24

SHIFTED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[n] x, float[p] past) => (float[t] present)
<int64[1] one = {1}, int64[1] end = {1000}, int64[1] zero = {0}>
{ whole = Concat<axis = 0>(past, x) present = Slice(whole, one, end, zero) }"""
SECOND = (
    "import sys, pickle, sardonyx as sx\n"
    "from sardonyx.providers.cpu.codegen.jit import statistics\n"
    "path, tokens, capacity, states = pickle.load(sys.stdin.buffer)\n"
    "session = sx.InferenceSession(path)\n"
    "binding, results = session.io_binding(), []\n"
    "for output in session.get_outputs():\n"
    "    binding.bind_output(output.name)\n"
    "for given, made, value, axis in states:\n"
    "    binding.bind_state(given, made, value, capacity=capacity, axis=axis)\n"
    "for x in tokens:\n"
    "    binding.bind_cpu_input('x', x)\n"
    "    session.run_with_iobinding(binding)\n"
    "    results.append(binding.copy_outputs_to_cpu())\n"
    "loaded = [m for m in ('onnx', 'llvmlite.binding', 'sardonyx.lower', 'sardonyx.model') if m in sys.modules]\n"
    "compiled = statistics.compiled + statistics.baseline\n"
    "sys.stdout.buffer.write(pickle.dumps((results, loaded, compiled)))"
)


def in_a_process(
    path: Path, given: list[Array], states: list[tuple[str, str, Array, int]], capacity: int = CAPACITY
) -> tuple[list[list[Array]], list[str], list[str]]:
    """Results of a new process, what heavy modules it has loaded, and the kernels that it has compiled."""
    sent = pickle.dumps((str(path), given, capacity, states))
    done = subprocess.run([sys.executable, "-c", SECOND], input=sent, stdout=subprocess.PIPE, check=True)
    found: tuple[list[list[Array]], list[str], list[str]] = pickle.loads(done.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    linker._addresses.clear()  # what others compiled is not in this folder
    return tmp_path / "cache"


@pytest.fixture(params=["operator", "written out"])
def model(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> Path:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(decoder(request.param))
    return path


@pytest.fixture
def decoder_path(tmp_path: Path, folder: Path) -> Path:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(decoder("written out"))
    return path


@pytest.fixture
def expected(decoder_path: Path) -> list[list[Array]]:
    """The results without states and without a cache."""
    options = sx.SessionOptions()
    options.add_session_config_entry("session.cache", "0")
    return by_copying(sx.InferenceSession(decoder_path, options), TOKENS)


def state_entries(folder: Path) -> list[Path]:
    cache_writer.wait()
    return sorted(folder.glob(f"*-{part_entries.STATES}-*.start"))


def start(path: Path, *, is_cached: bool) -> sx.InferenceSession:
    session = sx.InferenceSession(path)
    assert isinstance(session._sess.engine, CachedEngine) == is_cached
    return session


def has_loaded_its_model(session: sx.InferenceSession) -> bool:
    engine = session._sess.engine
    assert isinstance(engine, CachedEngine)
    return engine._built.engine is not None


def test_a_second_start_compiles_nothing(model: Path, folder: Path) -> None:
    past = np.zeros((1, 4, 0, 8), "f")
    names = [f"{i}.{what}" for i in range(2) for what in ("key", "value")]
    states = [(f"past.{name}", f"present.{name}", past, -2) for name in names]
    first, loaded, compiled = in_a_process(model, TOKENS, states)
    assert "onnx" in loaded and compiled
    for _ in range(2):
        second, loaded, compiled = in_a_process(model, TOKENS, states)
        assert_same(second, first)
        assert loaded == [] and compiled == []
    options = sx.SessionOptions()
    options.add_session_config_entry("session.cache", "0")
    copied = by_copying(sx.InferenceSession(model, options), TOKENS)
    assert_same([results[:1] for results in first], [results[:1] for results in copied])
    assert len(state_entries(folder)) == 1


def test_a_second_start_with_states_that_are_copied_compiles_nothing(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "shifted.onnx"
    path.write_bytes(onnx.parser.parse_model(SHIFTED).SerializeToString())
    given = [np.arange(i + 1, dtype="f") - 7 for i in range(4)]
    states = [("past", "present", np.arange(3, dtype="f"), 0)]
    past, expected = np.arange(3, dtype="f"), []
    for x in given:
        past = np.concatenate([past, x])[1:]
        expected.append([past])
    for is_second in (False, True, True):
        results, loaded, compiled = in_a_process(path, given, states)
        assert_same(results, expected)
        assert (loaded == [] and compiled == []) == is_second


def test_states_and_the_model_share_constants(decoder_path: Path, folder: Path, expected: list[list[Array]]) -> None:
    in_place(start(decoder_path, is_cached=False), TOKENS)
    assert state_entries(folder)
    constants._packed.clear()
    session = start(decoder_path, is_cached=True)
    assert_same(in_place(session, TOKENS), expected)
    assert not has_loaded_its_model(session)
    whole: Any = session._sess.engine.planned
    (version,) = whole._appending.values()
    large = [a for a in version.constants if a.nbytes >= 4096]
    assert len(large) == 6 and {id(a) for a in large} <= {id(a) for a in whole.constants}


DAMAGES = {
    "cut": lambda content: content[:-100],
    "cut in its header": lambda content: content[:200],
    "empty": lambda content: b"",
    "another version": lambda content: content.replace(entries.MARK, entries.MARK[:-1] + b"0"),
    "changed": lambda content: content[:150] + bytes([content[150] ^ 1]) + content[151:],
    "an array changed": lambda content: content[:-64] + bytes(byte ^ 1 for byte in content[-64:]),
    "not an entry": lambda content: b"something else" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_state_entries_are_made_again(
    decoder_path: Path, folder: Path, expected: list[list[Array]], damage: str
) -> None:
    in_place(start(decoder_path, is_cached=False), TOKENS)
    (kept,) = state_entries(folder)
    content = kept.read_bytes()
    kept.write_bytes(DAMAGES[damage](content))
    constants._packed.clear()
    for is_repaired in (False, True):
        session = start(decoder_path, is_cached=True)
        assert_same(in_place(session, TOKENS), expected)
        assert has_loaded_its_model(session) != is_repaired
        assert state_entries(folder) == [kept]


def test_an_entry_without_states_gets_them(decoder_path: Path, folder: Path, expected: list[list[Array]]) -> None:
    """Of a program that did not bind states, or an old entry."""
    by_copying(start(decoder_path, is_cached=False), TOKENS)
    assert not state_entries(folder)
    for is_second in (False, True):
        session = start(decoder_path, is_cached=True)
        assert_same(in_place(session, TOKENS), expected)
        assert has_loaded_its_model(session) != is_second
        assert len(state_entries(folder)) == 1


def test_kernels_that_are_gone_are_compiled_again(
    decoder_path: Path, folder: Path, expected: list[list[Array]]
) -> None:
    in_place(start(decoder_path, is_cached=False), TOKENS)
    state_entries(folder)
    for path in (folder / "kernels").iterdir():
        path.unlink()
    linker._addresses.clear()
    for is_second in (False, True):
        session = start(decoder_path, is_cached=is_second)
        assert_same(in_place(session, TOKENS), expected)
        state_entries(folder)
    assert not has_loaded_its_model(session)


def entry_of(path: Path) -> dict[str, Any]:
    folder = folders.cache_folder()
    assert folder is not None
    found = entries.read(folder, path.name, lambda entry: marshal.loads(entry.head))
    assert isinstance(found, dict)
    return found


def test_states_of_another_entry_of_the_model_are_not_used(
    decoder_path: Path, folder: Path, expected: list[list[Array]]
) -> None:
    in_place(start(decoder_path, is_cached=False), TOKENS)
    (kept,) = state_entries(folder)
    (base,) = (path for path in folder.glob("*.start") if path != kept)
    found = folders.cache_folder()
    assert found is not None
    plain = entry_of(base)

    def rewritten(entry: entries.Entry) -> bytes | None:
        body = entry.body.bytes(0, len(entry.body))
        return entries.write(found, base.name, marshal.dumps({**plain, "more": 1}), [body], len(body))

    assert entries.read(found, base.name, rewritten) is not None
    session = start(decoder_path, is_cached=True)
    assert_same(in_place(session, TOKENS), expected)
    assert has_loaded_its_model(session)
    state_entries(folder)
    session = start(decoder_path, is_cached=True)
    assert_same(in_place(session, TOKENS), expected)
    assert not has_loaded_its_model(session)


def test_state_entries_replace_each_other(
    decoder_path: Path, folder: Path, expected: list[list[Array]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_entries, "MAX_APPENDING", 2)
    session = sx.InferenceSession(decoder_path)
    for capacity in (20, 21, 22, 23):
        assert_same(in_place(session, TOKENS, capacity), expected)
        assert len(state_entries(folder)) == min(capacity - 19, 2)
    assert_same(in_place(start(decoder_path, is_cached=True), TOKENS, 23), expected)
    assert [item.kind for item in cache.items()].count(cache.SPECIALIZATION) == 2
    assert cache.clear(decoder_path) > 0 and not list(folder.glob("*.start"))


def test_errors_are_those_of_a_first_start(decoder_path: Path, folder: Path) -> None:
    messages = []
    for is_cached in (False, True):
        session = start(decoder_path, is_cached=is_cached)
        with pytest.raises(SardonyxError) as error:
            in_place(session, TOKENS, 7)
        messages.append(str(error.value))
        state_entries(folder)
    assert messages[0] == messages[1] and "no room" in messages[0]
