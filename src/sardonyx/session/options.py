"""SessionOptions and RunOptions: every setting of onnxruntime's, checked when it is set."""

from __future__ import annotations

import copy
import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from sardonyx.errors import Fail, InvalidArgument, NotImplemented
from sardonyx.ir.tensor import Tensor
from sardonyx.limits import Limits
from sardonyx.session.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtExecutionProviderDevicePolicy,
)
from sardonyx.session.misuse import Misuse

if TYPE_CHECKING:
    from sardonyx.partition.provider import RunContext
    from sardonyx.session.adapters import LoraAdapter
    from sardonyx.session.config_file import Config
    from sardonyx.session.devices import OrtEpDevice

T = TypeVar("T")
Own = TypeVar("Own", bound="Options")
MAX_KEY = 1024
MAX_VALUE = 8192


class Option(Generic[T]):
    """One typed attribute with a default."""

    def __init__(self, default: T, doc: str) -> None:
        self.default, self.kind, self.__doc__ = default, type(default), doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, holder: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, holder: object, owner: type) -> T: ...
    def __get__(self, holder: Any, owner: type) -> Option[T] | T:
        return self if holder is None else holder.__dict__.get(self.name, self.default)

    def __set__(self, holder: Any, value: Any) -> None:
        holder.__dict__[self.name] = self._checked(value)

    def _checked(self, value: Any) -> Any:
        if self.kind is bool and (value is None or isinstance(value, (int, float)) or hasattr(value, "dtype")):
            return bool(value)
        if self.kind is int:
            return whole(value, self.name)
        if self.kind is str and isinstance(value, (str, bytes, os.PathLike)):
            return os.fsdecode(value)
        if isinstance(value, self.kind):
            return value
        raise TypeError(f"{self.name} must be {self.kind.__name__}, not {type(value).__name__} ({value!r})")


def whole(value: Any, name: str, bits: int = 32) -> int:
    """A number that onnxruntime's option would accept; TypeError, with the option's name, for any other."""
    is_number = hasattr(value, "__index__") or (hasattr(value, "dtype") and getattr(value, "size", 0) == 1)
    number = int(value) if is_number and not isinstance(value, float) else None
    if number is None or number != value:
        raise TypeError(f"{name} must be int, not {type(value).__name__} ({value!r})")
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise TypeError(f"{name} must be int of {bits} bits, not {number}")
    return number


class Options:
    """Settings that refuse unknown attributes, plus string entries."""

    def __init__(self) -> None:
        self._config: dict[str, str] = {}

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and not isinstance(getattr(type(self), name, None), Option):
            known = [n for n in dir(type(self)) if isinstance(getattr(type(self), n), Option)]
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            hint = f". Did you mean: '{near[0]}'?" if near else ""
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{hint}")
        object.__setattr__(self, name, value)

    def _add(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"a configuration entry is two strings, not {key!r} and {value!r}")
        if not 0 < len(key) <= MAX_KEY:
            raise Misuse(f"Config key is empty or longer than maximum length {MAX_KEY}")
        if len(value) > MAX_VALUE:
            raise Misuse(f"Config value is longer than maximum length: {MAX_VALUE}")
        self._config[key] = value

    def _entry(self, key: str) -> str:
        if key not in self._config:
            raise Misuse(f"{type(self).__name__} does not have configuration with key: {key}")
        return self._config[key]

    def __copy__(self: Own) -> Own:
        twin = type(self)()
        for name, value in self.__dict__.items():
            twin.__dict__[name] = copy.copy(value) if isinstance(value, (dict, list)) else value
        return twin


Delegate = Callable[[Sequence["OrtEpDevice"], Mapping[str, str], Mapping[str, str], int], Sequence["OrtEpDevice"]]


class SessionOptions(Options):
    """Options of a session. Settings of memory and threads are hints that a provider may ignore."""

    enable_cpu_mem_arena = Option(True, "Keep an arena for CPU memory between runs.")
    enable_mem_pattern = Option(True, "Plan memory once for shapes seen before.")
    enable_mem_reuse = Option(True, "Let intermediate values share memory.")
    enable_profiling = Option(False, "Record a trace; end_profiling() writes it.")
    profile_file_prefix = Option("onnxruntime_profile_", "How the trace's file name begins.")
    optimized_model_filepath = Option("", "Write the optimized model there.")
    logid = Option("", "A name for the session in log messages.")
    log_severity_level = Option(-1, "0 verbose to 4 fatal; -1 for the default logger's.")
    log_verbosity_level = Option(0, "Kept for compatibility: verbose messages have one level here.")
    use_per_session_threads = Option(True, "False to use the threads of set_global_thread_pool_sizes().")
    intra_op_num_threads = Option(0, "Threads inside an operator; 0 lets the engine decide.")
    inter_op_num_threads = Option(0, "Threads across operators; 0 lets the engine decide.")
    execution_mode = Option(ExecutionMode.ORT_SEQUENTIAL, "Sequential or parallel.")
    execution_order = Option(ExecutionOrder.DEFAULT, "In which order nodes run.")
    graph_optimization_level = Option(GraphOptimizationLevel.ORT_ENABLE_ALL, "How far the graph is rewritten.")
    precision = Option(
        "highest", "How exact products are: highest (as f32), high (bf16 in three parts) or medium (bf16)."
    )
    trust = Option("trusted", 'Who vouches for the model: "trusted", or "untrusted" for nobody; then limits hold.')
    limits = Option(Limits(), "What an untrusted model may take (sardonyx.Limits).")
    use_deterministic_compute = Option(False, "Ask for results that do not vary from run to run.")

    def __init__(self) -> None:
        super().__init__()
        self._dims_by_name: dict[str, int] = {}
        self._dims_by_denotation: dict[str, int] = {}
        self._initializers: dict[str, Any] = {}
        self._external_initializers: dict[str, Any] = {}
        self._external_files: dict[str, bytes] = {}
        self._providers: list[tuple[str, dict[str, str]]] = []
        self._policy: OrtExecutionProviderDevicePolicy | Delegate | None = None
        self._cancelled = False
        self._max_memory: int | None = None
        self._libraries: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:
        state = {k: v for k, v in self.__dict__.items() if k != "_policy" or not callable(v)}
        return (_rebuilt, (type(self), state))

    # -- string entries

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a configuration key; see ``sardonyx.session.config_keys``. Any key is accepted; unknown keys are reported
        when the session is created.
        """
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        return self._entry(key)

    def load_config(self, path: str | os.PathLike[str]) -> Config:
        """Take the settings of a file that ``sardonyx.tune`` wrote, and return all that it says.

        Only what ``session.config_file`` lists is accepted. If anything else is in the file, nothing is set.
        """
        from sardonyx.session.config_file import read_config

        config = read_config(path)
        for name, value in config.options.items():
            setattr(self, name, value)
        self._config.update(config.entries)
        return config

    # -- dimensions and weights

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix a symbolic dimension."""
        self._dims_by_name[_name(name)] = whole(value, f"the size of dimension {name!r}", 64)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Fix every input dimension with this denotation (``DATA_BATCH`` ...)."""
        self._dims_by_denotation[_name(denotation)] = whole(value, f"the size of dimensions {denotation!r}", 64)

    def add_initializer(self, name: str, ortvalue: Any) -> None:
        """Use this OrtValue instead of the model's initializer."""
        if name in self._initializers:
            raise Misuse(f"An OrtValue for this name has already been added: {name}")
        self._initializers[name] = _tensor_of(ortvalue)

    def add_external_initializers(self, names: Sequence[str], ortvalues: Sequence[Any]) -> None:
        """Give the contents of initializers that the model keeps in external files."""
        if len(names) != len(ortvalues):
            raise Misuse("names and OrtValues must be equally many", expected=len(names), got=len(ortvalues))
        self._external_initializers.update(zip(names, map(_tensor_of, ortvalues), strict=True))

    def add_external_initializers_from_files_in_memory(
        self, file_names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Give the contents of external files by the locations that the model names."""
        if not len(file_names) == len(buffers) == len(lengths):
            raise Misuse(
                "file names, buffers and lengths must be equally many",
                got=f"{len(file_names)}, {len(buffers)}, {len(lengths)}",
            )
        for name, buffer, length in zip(file_names, buffers, lengths, strict=True):
            try:
                view = memoryview(buffer).cast("B")
            except TypeError as error:
                raise TypeError(f"the contents of external file {name!r} are no buffer: {error}") from None
            if not 0 <= whole(length, f"the length of external file {name!r}", 64) <= len(view):
                raise Misuse(
                    f"the length of external file {name!r} is not within its buffer",
                    expected=f"0 to {len(view)}",
                    got=length,
                )
            self._external_files[name] = bytes(view[:length])

    # -- providers

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Use this execution provider, after those added before."""
        from sardonyx.partition import registry

        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise TypeError(f"a provider is a name and a mapping of options, not {name!r} and {options!r}")
        if not registry.is_known(name):
            raise Misuse(f"Unknown Provider Type: {name}")
        why = registry.why_not(name)
        if why is not None:
            raise InvalidArgument(f"Failed to add provider of type '{name}' to SessionOptions", hint=why)
        self._providers.append((name, {str(k): str(v) for k, v in options.items()}))

    def add_provider_for_devices(self, ep_devices: Sequence[OrtEpDevice], options: Mapping[str, str]) -> None:
        """Use the provider that owns these devices."""
        if not ep_devices:
            raise InvalidArgument("Must provide one or more OrtEpDevice instances.")
        if len({d.ep_name for d in ep_devices}) > 1:
            raise InvalidArgument("All OrtEpDevice instances must be of one provider.")
        self.add_provider(ep_devices[0].ep_name, options)

    def has_providers(self) -> bool:
        return bool(self._providers) or self._policy is not None

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        if not isinstance(policy, OrtExecutionProviderDevicePolicy):
            raise TypeError(f"an OrtExecutionProviderDevicePolicy is needed, not {policy!r}")
        self._policy = policy

    def set_provider_selection_policy_delegate(self, delegate: Delegate) -> None:
        """``delegate(devices, model_metadata, runtime_metadata, max_selections)`` returns the devices to use."""
        self._policy = delegate

    # -- the rest

    def register_custom_ops_library(self, path: str) -> None:
        """Run a Python file that defines operators (``sardonyx.custom_op``), here and where the options are unpickled.

        Native libraries of custom operators cannot be used; it is only checked that the file exists.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"the path of a library of custom operators is text, not {path!r}")
        if os.fspath(path).endswith(".py"):
            load_operators(os.path.abspath(path))
            self._libraries.append(os.path.abspath(path))
            return
        try:
            ctypes.CDLL(os.fspath(path))
        except OSError as error:
            raise Fail(f"Failed to load library {path} with error: {error}") from None
        raise NotImplemented(
            "libraries of native custom operators are written for onnxruntime's C API, which Sardonyx does not have",
            where=os.fspath(path),
        )

    def set_load_cancellation_flag(self, flag: bool) -> None:
        """True stops the creation of sessions with these options."""
        self._cancelled = bool(flag)

    def set_ep_context_data_read_func(self, read_func: Callable[..., None], max_data_size: int) -> None:
        raise NotImplemented("no provider of this build keeps EPContext data")

    def clear_ep_context_data_read_func(self) -> None:
        """No-op: there is never one."""


class _Terminate(Option[bool]):
    """A flag that is passed on to current runs when it is set."""

    def __set__(self, holder: Any, value: Any) -> None:
        super().__set__(holder, value)
        if holder.terminate:
            for context in tuple(holder._under_way):
                context.stop = True


class RunOptions(Options):
    """Options of a run."""

    log_severity_level = Option(-1, "0 verbose to 4 fatal; -1 for the session's.")
    log_verbosity_level = Option(0, "Kept for compatibility: verbose messages have one level here.")
    logid = Option("", "A name for the run in log messages.")
    only_execute_path_to_fetches = Option(False, "Ask for no more than the wanted outputs need.")
    terminate = _Terminate(False, "True stops every run under way with these options, and refuses new ones.")

    def __init__(self) -> None:
        super().__init__()
        self._adapters: list[LoraAdapter] = []
        self._under_way: set[RunContext] = set()

    def __copy__(self) -> RunOptions:
        twin = super().__copy__()
        twin.__dict__["_under_way"] = set()
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (type(self), {**self.__dict__, "_under_way": set()}))

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        return self._entry(key)

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        """Feed this adapter's parameters to the run."""
        self._adapters.append(adapter)


def _rebuilt(cls: type[Options], state: dict[str, Any]) -> Options:
    options = cls()
    options.__dict__.update(state)
    for path in state.get("_libraries", ()):
        load_operators(path)
    return options


def load_operators(path: str) -> None:
    """Run a file of custom operators as a module, once per process."""
    name = os.path.splitext(os.path.basename(path))[0]
    if getattr(sys.modules.get(name), "__file__", None) == path:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise Fail(f"Failed to load library {path} with error: {error}") from error


def _name(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"the name of a dimension is text, not {given!r}")
    return given


def check_severity(level: int, whose: str) -> None:
    """Refuse an invalid log level."""
    if not -1 <= level <= 4:
        raise InvalidSeverity(
            f"Invalid {whose} log severity level",
            where="log_severity_level",
            expected="-1 (the default), 0 (verbose), 1 (info), 2 (warning), 3 (error) or 4 (fatal)",
            got=level,
        )


class InvalidSeverity(Misuse, Fail):
    """A RuntimeError when a session is created, a Fail in a run, as in onnxruntime."""


def _tensor_of(ortvalue: Any) -> Any:
    if isinstance(ortvalue, Tensor):  # a constant of another model of ours: its elements stay in their file
        return ortvalue
    native = getattr(ortvalue, "_ortvalue", ortvalue)
    if not hasattr(native, "is_tensor"):
        raise Misuse("The provided Python object must be an OrtValue", got=type(ortvalue).__name__)
    return native.value
