"""InferenceSession: a model that runs."""

from __future__ import annotations

import collections.abc
import importlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from sardonyx import knobs
from sardonyx.errors import EPFail, InvalidArgument
from sardonyx.limits import Limits, forbidden
from sardonyx.partition import registry
from sardonyx.partition.provider import Memory, RunContext
from sardonyx.partition.registry import CPU
from sardonyx.session import log, untrusted
from sardonyx.session.binding import IOBinding
from sardonyx.session.devices import OrtDevice, OrtEpDevice, OrtMemoryInfo
from sardonyx.session.metadata import ModelMetadata, NodeArg, OrtEpAssignedSubgraph
from sardonyx.session.native import NativeSession
from sardonyx.session.native_values import NativeValueVector
from sardonyx.session.options import RunOptions, SessionOptions
from sardonyx.session.values import OrtValue, public_value
from sardonyx.session.workers import submit

if TYPE_CHECKING:
    from sardonyx.session.explain import CompiledSteps, Explanation

ProviderList = Sequence["str | tuple[str, dict[Any, Any]]"]


def check_and_normalize_provider_args(
    providers: ProviderList | None,
    provider_options: Sequence[dict[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Names in order and their options as strings; duplicates and absent providers are warned about."""
    if providers is None:
        return [], []
    if isinstance(providers, str):
        warnings.warn(f"'providers' should be a sequence of names; taking it as [{providers!r}]", stacklevel=4)
        providers = [providers]
    if not isinstance(providers, collections.abc.Sequence):
        raise ValueError("'providers' should be a sequence.")
    pairs = _paired(providers, provider_options)
    chosen: dict[str, dict[str, str]] = {}
    for name, options in pairs:
        if name not in available_provider_names:
            listed = ", ".join(available_provider_names)
            why = f" {registry.why_not(name)}; nodes run on the CPU instead." if registry.is_known(name) else ""
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names.Available providers: '{listed}'.{why}",
                stacklevel=4,
            )
        if name in chosen:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=4)
            continue
        chosen[name] = {str(k): str(v) for k, v in options.items()}
    return list(chosen), list(chosen.values())


def _available(asked: ProviderList | None) -> list[str]:
    """Known provider names; providers of other packages are loaded only if more than the CPU is requested."""
    names = [p[0] if isinstance(p, tuple) and p else p for p in asked] if isinstance(asked, (list, tuple)) else [asked]
    return [CPU] if all(name in (None, CPU) for name in names) else registry.available()


def _paired(providers: ProviderList, options: Sequence[dict[Any, Any]] | None) -> list[tuple[str, dict[Any, Any]]]:
    if options is None:
        pairs = [(p, {}) if isinstance(p, str) else p for p in providers]
        for pair in pairs:
            if not (
                isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], dict)
            ):
                raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        return pairs
    if not isinstance(options, collections.abc.Sequence):
        raise ValueError("'provider_options' should be a sequence.")
    if len(providers) != len(options):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    if not all(isinstance(o, dict) for o in options):
        raise ValueError("'provider_options' values must be dicts.")
    names = [p for p in providers if isinstance(p, str)]
    if len(names) != len(providers):
        raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
    return list(zip(names, options, strict=True))


class Session:
    """Methods of all sessions; ``_sess`` is the session behind the API and is replaced by ``set_providers``."""

    def __init__(self, enable_fallback: bool = True) -> None:
        self._sess: NativeSession
        self._enable_fallback = enable_fallback

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Memory:
        """The memory that a run of these input shapes takes, before any is taken; for models compiled as a whole."""
        return self._sess.engine.memory(shapes)

    def get_session_options(self) -> SessionOptions:
        """The options that the session was created with."""
        return self._sess.session_options

    def get_inputs(self) -> list[NodeArg]:
        return self._sess.inputs_meta

    def get_outputs(self) -> list[NodeArg]:
        return self._sess.outputs_meta

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that a feed may replace."""
        return self._sess.overridable_initializers

    def get_modelmeta(self) -> ModelMetadata:
        return self._sess.model_meta

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        return self._sess.input_meminfos

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        return self._sess.output_meminfos

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        return self._sess.input_epdevices

    def get_providers(self) -> list[str]:
        return self._sess.get_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return self._sess.get_provider_options()

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Which provider runs which nodes, if ``session.record_ep_graph_assignment_info`` is set."""
        return self._sess.get_provider_graph_assignment_info()

    @overload
    def explain(self) -> Explanation: ...

    @overload
    def explain(self, *, stage: str) -> CompiledSteps: ...

    def explain(self, *, stage: str | None = None) -> Explanation | CompiledSteps:
        """Every node with its provider and the reason, and what the optimizer did. ``print`` it.

        ``stage="cpu"`` returns the kernels of the compiled parts instead, with the variants that were chosen.
        """
        if stage is None:
            return self._sess.engine.explain()
        if stage != "cpu":
            raise InvalidArgument("this stage cannot be explained", expected="cpu", got=stage)
        from sardonyx.session.explain import CompiledSteps

        return CompiledSteps.of(self._sess.engine.parts.compiled)

    def disable_fallback(self) -> None:
        """A provider's failure is raised."""
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        """A provider's failure moves the session to the CPU, once."""
        self._enable_fallback = True

    # -- running

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """Compute outputs; all of them if ``output_names`` is None or empty.

        A feed holds arrays, lists, OrtValues, or objects that support DLPack. Results are arrays, sparse tensors, lists
        or dictionaries that share no memory.
        """
        try:
            return self._sess.run(output_names, input_feed, run_options)
        except EPFail as error:
            self._fall_back(error)
        return self._sess.run(output_names, input_feed, run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Return at once; later ``callback(results, user_data, error)`` is called from another thread.

        The error is empty on success. With asyncio, use ``run_awaitable``.
        """
        self._sess.require(input_feed)
        self._sess.run_async(output_names, input_feed, callback, user_data, run_options)

    async def run_awaitable(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Any]:
        """``run`` on another thread, as a coroutine.

        Cancelling the task stops the run between two nodes, and so does the timeout, in seconds, with a TimeoutError.
        """
        session, context = self._sess, RunContext()
        wanted = session.wanted(output_names)
        import asyncio

        future = asyncio.wrap_future(submit(lambda: session.compute(wanted, input_feed, run_options, context)))
        future.add_done_callback(lambda f: f.cancelled() or f.exception())
        try:
            results = await asyncio.wait_for(asyncio.shield(future), timeout)
        except asyncio.TimeoutError:
            context.stop = True
            raise TimeoutError(f"the run took longer than {timeout} s") from None
        except asyncio.CancelledError:
            context.stop = True
            raise
        return [public_value(value) for value in results]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """``run`` from OrtValues to OrtValues."""
        feed = {name: value._get_c_value() for name, value in input_dict_ort_values.items()}
        try:
            results = self._sess.run_with_ort_values(feed, output_names, run_options)
        except EPFail as error:
            self._fall_back(error)
            results = self._sess.run_with_ort_values(feed, output_names, run_options)
        return [OrtValue(v) for v in results]

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Compute the bound outputs from the bound inputs."""
        if iobinding._session is not self._sess:
            raise ValueError("IOBinding must be used with the session that created it.")
        self._sess.run_with_iobinding(iobinding._iobinding, run_options)

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: NativeValueVector,
        fetch_names: Sequence[str],
        fetches: NativeValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """``run`` from a vector of values into another."""
        self._sess.run_with_ortvaluevector(run_options, feed_names, feeds, fetch_names, fetches, fetch_devices)

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A tensor of zeros in the session's memory."""
        device = OrtDevice.make(device_type, device_id, vendor_id)._get_c_device()
        return OrtValue(self._sess.create_ortvalue_from_shape_and_type(shape, element_type, device), session=self._sess)

    # -- the rest

    def end_profiling(self) -> str:
        """Write the trace that ``enable_profiling`` asked for, and return its path."""
        return self._sess.end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        """When the trace began, comparable with ``time.monotonic_ns()``."""
        return self._sess.get_profiling_start_time_ns

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        self._sess.release_captured_graph(graph_annotation_id)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        self._sess.set_ep_dynamic_options(options)

    def get_tuning_results(self) -> list[dict[str, Any]]:
        return self._sess.get_tuning_results()

    def set_tuning_results(self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False) -> None:
        self._sess.set_tuning_results(results, error_on_invalid)

    def set_providers(
        self, providers: ProviderList | None = None, provider_options: Sequence[dict[Any, Any]] | None = None
    ) -> None:
        raise NotImplementedError

    def _fall_back(self, error: EPFail) -> None:
        """Move to the CPU after a provider's failure, once; re-raise if fallback is disabled."""
        if not self._enable_fallback:
            raise error
        log.emit(log.WARNING, f"EP Error: {error} using {self.get_providers()}; falling back to {[CPU]}")
        self.set_providers([CPU])
        self.disable_fallback()


class InferenceSession(Session):
    """A loaded, compiled model. Any number of threads may run it; it can be pickled, and used after a fork.

    ``path_or_bytes`` is a path, serialized bytes, a binary file or an ``onnx.ModelProto``. ``providers`` are names, or
    pairs of name and options, in order of preference. ``precision`` is that of ``SessionOptions``. A run whose plan
    needs more than ``max_memory`` bytes raises before memory is taken. ``trust="untrusted"`` applies ``limits`` to the
    model (docs/untrusted-models.md). With ``strict``, warnings become errors: a provider that is not available, an
    unknown configuration key.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: ProviderList | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        precision: str | None = None,
        max_memory: int | None = None,
        trust: str | None = None,
        limits: Limits | None = None,
        strict: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(enable_fallback=bool(int(kwargs.pop("enable_fallback", 1))))
        read_config = kwargs.pop("read_config_from_model", None)
        self._read_config = knobs.LOAD_CONFIG_FROM_MODEL.get() if read_config is None else bool(int(read_config))
        self._disabled = frozenset(kwargs.pop("disabled_optimizers", None) or ())
        self._strict, self._precision, self._max_memory = strict, precision, max_memory
        self._trust, self._limits = trust, limits
        _refuse_unknown(kwargs, strict)
        self._sess_options_initial = sess_options
        bounds = untrusted.limits_of(self._made_with())
        if bounds is None:
            self._source, self._model_path = _source(path_or_bytes)
        else:
            if read_config is not None and self._read_config:
                raise forbidden("set the options of its session", where="read_config_from_model")
            from sardonyx.model import bounds as file

            self._source, self._model_path, self._read_config = file.read(path_or_bytes, bounds), None, False
        self._asked = (providers, provider_options)
        self._create(providers, provider_options, may_fall_back=self._enable_fallback and not strict)

    def _create(
        self, providers: ProviderList | None, provider_options: Sequence[dict[Any, Any]] | None, *, may_fall_back: bool
    ) -> None:
        available = _available(providers)
        names, options = check_and_normalize_provider_args(providers, provider_options, available)
        if {"TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"} <= set(names):
            raise ValueError(
                "Cannot enable both 'TensorrtExecutionProvider' and 'NvTensorRTRTXExecutionProvider' "
                "in the same session."
            )
        if self._strict:
            for name in names:
                if registry.is_known(name) and name not in available:
                    raise EPFail(f"{name} was asked for and is not available", hint=registry.why_not(name))
        made_with = self._made_with()
        if names and made_with.has_providers():
            warnings.warn(
                "Specified 'providers'/'provider_options' when creating InferenceSession but SessionOptions has "
                "already been configured with providers. InferenceSession will only use the providers passed to "
                "InferenceSession().",
                stacklevel=3,
            )
        unknown = [name for name in names if not registry.is_known(name)]
        if unknown and may_fall_back:
            message = f"EP Error Unknown Provider Type: {unknown[0]} when using {providers}"
            log.emit(log.WARNING, f"{message}; falling back to {[CPU]}")
            names, options = [CPU], [{}]
        session = NativeSession(
            made_with, self._source, self._model_path is not None, self._read_config, strict=self._strict
        )
        session.initialize_session(names, options, self._disabled)
        self._sess = session
        self._asked = (providers, provider_options)

    def _made_with(self) -> SessionOptions:
        """The options, updated from the arguments."""
        options = self._sess_options_initial or SessionOptions()
        if (self._precision, self._max_memory, self._trust, self._limits) == (None, None, None, None):
            return options
        options = options.__copy__()
        options.precision = self._precision or options.precision
        options.trust = self._trust or options.trust
        options.limits = self._limits or options.limits
        options._max_memory = self._max_memory
        return options

    def set_providers(
        self, providers: ProviderList | None = None, provider_options: Sequence[dict[Any, Any]] | None = None
    ) -> None:
        """Create the session again on other providers."""
        self._create(providers, provider_options, may_fall_back=False)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the session behind the API, which is created again."""
        state = {name: value for name, value in self.__dict__.items() if name != "_sess"}
        if self._model_path is not None:
            state["_source"] = state["_model_path"] = os.path.abspath(self._model_path)
        from sardonyx.ops.custom import modules_of

        return {**state, "_definitions": modules_of(self._sess.engine.model.graph)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in state.pop("_definitions"):
            importlib.import_module(name)
        self.__dict__.update(state)
        self._create(*self._asked, may_fall_back=self._enable_fallback and not self._strict)


def _source(given: Any) -> tuple[Any, str | None]:
    """What the engine loads, copied if the caller could change it; and the path if it is one."""
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        return path, path if isinstance(path, str) else os.fsdecode(path)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given), None
    if hasattr(given, "SerializeToString"):
        return given.SerializeToString(), None
    if hasattr(given, "read"):
        name = getattr(given, "name", None)
        if isinstance(name, str) and os.path.isfile(name):
            return name, name
        content = given.read()
        if not isinstance(content, bytes):
            raise TypeError("the model file must be opened in binary mode")
        return content, None
    raise TypeError(f"Unable to load from type '{type(given)}'")


def _refuse_unknown(kwargs: Mapping[str, Any], strict: bool) -> None:
    known = (
        "enable_fallback",
        "read_config_from_model",
        "disabled_optimizers",
        "limits",
        "precision",
        "strict",
        "trust",
        "providers",
        "sess_options",
    )
    for name in kwargs:
        import difflib

        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        if strict:
            raise TypeError(f"InferenceSession takes no argument {name!r}{hint}")
        warnings.warn(f"InferenceSession takes no argument {name!r}; it is ignored{hint}", stacklevel=3)
