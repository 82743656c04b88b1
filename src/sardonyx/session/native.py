"""The session behind the Python API: an engine, checks of its feeds, and runs (``capi``'s InferenceSession)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import RUN, Fail, InvalidArgument, NotImplemented, Reporting, SardonyxError
from sardonyx.partition import registry
from sardonyx.partition.provider import RunContext
from sardonyx.partition.registry import CPU
from sardonyx.session import compiled_cache, config_keys, environment, feeds, log, untrusted
from sardonyx.session.cpu_options import cpu_providers, split_names
from sardonyx.session.devices import NativeDevice, OrtEpDevice, OrtMemoryInfo, cpu_memory
from sardonyx.session.engine import BuildOptions, Engine
from sardonyx.session.enums import ExecutionMode, GraphOptimizationLevel
from sardonyx.session.metadata import OrtEpAssignedNode, OrtEpAssignedSubgraph, node_arg
from sardonyx.session.misuse import MissingInputs, Misuse
from sardonyx.session.native_values import NativeValue, NativeValueVector
from sardonyx.session.options import Delegate, RunOptions, SessionOptions, check_severity
from sardonyx.session.saving import saved
from sardonyx.session.values import public_value
from sardonyx.session.workers import submit

if TYPE_CHECKING:
    from sardonyx.session.trace import Trace

LEVELS = {0: "disabled", 1: "basic", 2: "extended", 3: "layout", 99: "all"}
MAX_DEVICES = 8
"""How many devices a selection delegate may choose."""
CACHE_KEY = "session.cache"
SHRINKAGE_KEY = "memory.enable_memory_arena_shrinkage"
ASSIGNMENT_KEY = "session.record_ep_graph_assignment_info"
CPU_FORBIDDEN_KEY = "session.disable_cpu_ep_fallback"
CPU_FORBIDDEN = (
    "This session contains graph nodes that are assigned to the default CPU EP, "
    "but fallback to CPU EP has been explicitly disabled by the user."
)

_RUN = Reporting(RUN, outermost=True)


class NativeSession:
    """Created in two steps like onnxruntime's: first source and options, then providers."""

    def __init__(
        self,
        session_options: SessionOptions,
        source: Any,
        is_path: bool,
        read_config: bool = False,
        *,
        strict: bool = False,
    ) -> None:
        if not isinstance(session_options, SessionOptions):
            raise TypeError(f"sess_options must be SessionOptions, not {type(session_options).__name__}")
        self._asked = session_options
        self.session_options = session_options.__copy__()
        self._source, self._read_config, self._strict = source, read_config, strict
        self._from = "model_loading_uri" if is_path else "model_loading_array"
        self._trace: Trace | None = None

    def initialize_session(
        self,
        providers: Sequence[str],
        provider_options: Sequence[Mapping[str, str]],
        disabled_optimizers: set[str] | frozenset[str] = frozenset(),
    ) -> None:
        """Load the model and compile it for these providers."""
        options = self.session_options
        for name in providers:
            if not registry.is_known(name):
                raise Misuse(f"Unknown Provider Type: {name}", expected=", ".join(registry.available()))
        check_severity(options.log_severity_level, "session")
        environment.check_thread_pool(options.use_per_session_threads)
        config_keys.review(options._config, config_keys.SESSION_KEYS, strict=self._strict, stacklevel=5)
        if self._read_config and untrusted.limits_of(options) is None:
            self._take_config_from_model()
        if options.enable_profiling:
            from sardonyx.session.trace import Trace  # a start that is not profiled does without

            self._trace = Trace(options.profile_file_prefix, options.precision)
        asked = dict(zip(providers, provider_options, strict=True)) or dict(options._providers)
        self._choose(asked)
        self._engine = self._built(disabled_optimizers)
        self._describe()
        if not asked and callable(options._policy):
            self._ask(options._policy)
        if self._trace is not None:  # a session that could not be made leaves no trace
            self._close_trace = weakref.finalize(self, self._trace.close)

    # -- creation

    def _choose(self, asked: dict[str, Mapping[str, str]]) -> None:
        """Keep the available providers among those requested, and append the CPU if it is not one of them."""
        forbidden = self.session_options._config.get(CPU_FORBIDDEN_KEY) == "1"
        if forbidden and CPU in asked:
            raise InvalidArgument(
                "Conflicting session configuration: explicitly added the CPU EP to the session, "
                "but also disabled fallback to the CPU EP via session configuration options."
            )
        kept = {name: dict(opts) for name, opts in asked.items() if registry.why_not(name) is None}
        if forbidden and not set(kept) - {CPU}:
            raise Fail(CPU_FORBIDDEN)
        kept.setdefault(CPU, {})
        self._providers: dict[str, dict[str, str]] = kept

    def _ask(self, delegate: Delegate) -> None:
        """Let the caller's delegate select devices; the CPU is the only choice."""
        model = self._engine.model
        metadata = {
            "producer_name": model.producer_name,
            "producer_version": model.producer_version,
            "domain": model.domain,
            "model_version": str(self.model_meta.version),
            "doc_string": model.doc,
            "graph_name": model.graph.name,
            "graph_description": model.graph.doc,
            **model.metadata,
        }
        if not delegate(environment.get_ep_devices(), metadata, {}, MAX_DEVICES):
            raise Fail("the provider selection delegate chose no device")

    def _built(self, disabled: set[str] | frozenset[str]) -> Engine:
        options, config, asked_for = self.session_options, self.session_options._config, self._asked
        self._refuse_ort_format()
        named = split_names(config.get("optimization.disable_specified_optimizers", ""))
        start = time.perf_counter_ns()
        asked = BuildOptions(
            providers=[
                *(registry.make(name, opts) for name, opts in self._providers.items() if name != CPU),
                *cpu_providers(options),
            ],
            level=LEVELS.get(int(options.graph_optimization_level), "all"),
            disabled_passes=frozenset(disabled).union(named),
            narrow_doubles=config.get(config_keys.DOUBLES_KEY) == "1",
            free_dims=options._dims_by_name,
            free_dims_by_denotation=options._dims_by_denotation,
            initializers={**options._external_initializers, **options._initializers},
            external_files=options._external_files,
            external_folder=config.get("session.model_external_initializers_file_folder_path"),
            cancelled=lambda: asked_for._cancelled,  # not self: the engine keeps a reference to its source
            limits=untrusted.limits_of(options),
            is_cached=config.get(CACHE_KEY) != "0",
        )
        save_path = options.optimized_model_filepath or None
        if asked.limits is not None:
            untrusted.refuse_options(replace(asked, save_path=save_path), list(self._providers))
        self._releases = [p.release for p in asked.providers if hasattr(p, "release")]
        with Reporting("building the session", outermost=True), saved(options.optimized_model_filepath, config) as to:
            engine = compiled_cache.engine_of(self._source, replace(asked, save_path=to))
        source, apart = engine.source, replace(asked, level="disabled", separate_dims=True)
        if asked.limits is not None:  # a run has no time to compile
            apart = replace(apart, providers=())
        engine.as_written = cache(lambda: _as_written(source, apart, options))
        if config.get(CPU_FORBIDDEN_KEY) == "1" and CPU in map(self._owner, engine.explain().counts()):
            raise Fail(CPU_FORBIDDEN)
        if self._trace is not None:
            loaded = start + int(engine.phases.get("load", 0) * 1e9)
            self._trace.session(self._from, start, loaded)
            self._trace.session("session_initialization", loaded, time.perf_counter_ns(), self._settings(asked))
        for name, seconds in engine.phases.items():
            self._log(log.VERBOSE, f"{name}: {seconds * 1e3:.1f} ms")
        self._log(log.INFO, "Session successfully initialized.")
        return engine

    def _settings(self, asked: BuildOptions) -> dict[str, Any]:
        """What the session was asked for, for its trace."""
        options = self.session_options
        return {
            "precision": options.precision,
            "optimization_level": asked.level,
            "asked_threads": options.intra_op_num_threads,
            "threads": max((getattr(p, "threads", 1) for p in asked.providers), default=1),
            "providers": list(self._providers),
        }

    def _refuse_ort_format(self) -> None:
        config = self.session_options._config
        for key, path in (
            ("session.load_model_format", self._source),
            ("session.save_model_format", self.session_options.optimized_model_filepath),
        ):
            if config.get(key) == "ORT" or (isinstance(path, str) and path.endswith(".ort")):
                raise NotImplemented("models in ORT format are neither read nor written", where=key, hint="use ONNX")

    def _describe(self) -> None:
        engine = self._engine
        self.inputs_meta = [node_arg(v) for v in engine.inputs]
        self.outputs_meta = [node_arg(v) for v in engine.outputs]
        self.overridable_initializers = [node_arg(v) for v in engine.overridable]
        self.model_meta = engine.metadata
        values = {v.name: v for v in (*engine.inputs, *engine.overridable)}
        self._checks = {name: feeds.check_for(values[name]) for name in engine.names}
        self._planned = engine.planned_run if self._trace is None else None
        self._required = frozenset(m.name for m in self.inputs_meta if not m.type.startswith("optional"))
        self._output_names = tuple(m.name for m in self.outputs_meta)
        self._is_output = frozenset(self._output_names)
        if self._trace is not None:
            self._trace.indices = {node: i for i, node in enumerate(engine.model.graph.all_nodes())}

    def _take_config_from_model(self) -> None:
        """Apply the session options that a model carries in its metadata under ``ort_config``."""
        import json

        from sardonyx.model.load import load

        text = load(self._source, infer=False).metadata.get("ort_config")
        if text is None:
            return
        try:
            settings = json.loads(text).get("session_options", {})
        except (ValueError, AttributeError) as error:
            raise Misuse("Json stored in the `ort_config` key cannot be parsed.", got=str(error)) from None
        options = self.session_options
        for name, value in settings.items():
            if name == "graph_optimization_level":
                options.graph_optimization_level = GraphOptimizationLevel(value)
            elif name == "execution_mode":
                options.execution_mode = ExecutionMode(value)
            elif name in ("intra_op_num_threads", "inter_op_num_threads", "enable_profiling"):
                setattr(options, name, value)
            else:
                self._log(log.WARNING, f"the model's ort_config sets {name!r}, which is not supported")

    def _log(self, severity: int, message: str) -> None:
        options = self.session_options
        log.emit(severity, message, logid=options.logid, threshold=options.log_severity_level)

    # -- inspection

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def input_meminfos(self) -> list[OrtMemoryInfo]:
        return [cpu_memory() for _ in self.inputs_meta]

    @property
    def output_meminfos(self) -> list[OrtMemoryInfo]:
        return [cpu_memory() for _ in self.outputs_meta]

    @property
    def input_epdevices(self) -> list[OrtEpDevice]:
        return [environment.get_ep_devices()[0] for _ in self.inputs_meta]

    def get_providers(self) -> list[str]:
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The CPU provider has no options of its own."""
        return {name: {} if name == CPU else dict(options) for name, options in self._providers.items()}

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        if self.session_options._config.get(ASSIGNMENT_KEY) != "1":
            raise Fail(
                f"Session configuration entry '{ASSIGNMENT_KEY}' must be set to \"1\" "
                "to retrieve EP graph assignment information."
            )
        placed = self._engine.explain().by_node(self._engine.model.graph)
        return [
            OrtEpAssignedSubgraph(self._owner(p.provider), (OrtEpAssignedNode(n.name, n.domain, n.op_type),))
            for n, p in placed
        ]

    def _owner(self, provider: str) -> str:
        """The name that users know a provider by; the reference provider is reported as the CPU provider."""
        return provider if provider in self._providers else CPU

    @property
    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._trace is None else self._trace.start_ns

    def end_profiling(self) -> str:
        """Write the trace and return its path; empty if no profile was recorded."""
        if self._trace is None:
            return ""
        self._close_trace.detach()
        return self._trace.close()

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """Always empty: the CPU provider tunes nothing."""
        return []

    def set_tuning_results(self, results: Sequence[Mapping[str, Any]], error_on_invalid: bool = False) -> None:
        for result in results:
            message = f"Cannot find execution provider {result['ep']}: no provider here has tuning results"
            if error_on_invalid:
                raise Misuse(f"Failed to load TuningResults. {message}")
            self._log(log.WARNING, message)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        if not options:
            raise Misuse("No options were provided")
        for key in options:
            log.emit_once(log.INFO, f"the dynamic provider option {key!r} has no effect in Sardonyx")

    def release_captured_graph(self, graph_annotation_id: int) -> None:
        """No-op: no graph is captured on the CPU."""

    def is_webgpu_graph_capture_enabled(self) -> bool:
        return False

    def webgpu_context_id(self) -> int:
        return -1

    def create_ortvalue_from_shape_and_type(self, shape: Sequence[int], spec: Any, device: NativeDevice) -> NativeValue:
        return NativeValue.ortvalue_from_shape_and_type(shape, spec, device)

    create_ortvalue_from_shape_and_onnx_type = create_ortvalue_from_shape_and_type

    # -- running

    def prepare(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The feed in the engine's form."""
        self.require(feed)
        checks = self._checks
        prepared = {}
        for name, value in feed.items():
            check = checks.get(name)
            if check is None:
                raise self._unknown(name)
            prepared[name] = check(value)
        return prepared

    def require(self, feed: Mapping[str, Any]) -> None:
        """Refuse a feed that lacks an input."""
        if not self._required <= feed.keys():
            missing = [m.name for m in self.inputs_meta if m.name in self._required and m.name not in feed]
            raise MissingInputs(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")

    def _unknown(self, name: object) -> Exception:
        if not isinstance(name, str):
            return TypeError(f"a feed maps names to values; {name!r} is not a name")
        return InvalidArgument(f"Invalid input name: {name}", expected=", ".join(self._checks) or "no inputs")

    def wanted(self, output_names: Sequence[str] | None) -> Sequence[str]:
        """The names of the outputs to compute: all of them if none are given."""
        if not output_names:
            return self._output_names
        if isinstance(output_names, str):
            raise TypeError(f"output_names is a list of names, not the name {output_names!r}")
        for name in output_names:
            if name not in self._is_output:
                raise InvalidArgument(f"Invalid output name:{name}", expected=", ".join(self._output_names))
        return output_names

    def run(
        self, output_names: Sequence[str] | None, feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """The outputs as Python values."""
        wanted = self._output_names if output_names is None else self.wanted(output_names)
        if run_options is None and self._planned is not None and type(feed) is dict:
            is_all = wanted is self._output_names
            results = self._run_planned(feed) if is_all or len(set(wanted)) == len(wanted) else None
            if results is not None:
                return results if is_all else [results[self._output_names.index(name)] for name in wanted]
        if run_options is None and self._trace is None:
            results = self._run(self.prepare(feed), wanted, RunContext(is_private=True))
        else:
            results = self.compute(wanted, feed, run_options)
        return [public_value(value) for value in results]

    def _run(self, prepared: dict[str, Any], wanted: Sequence[str], context: RunContext) -> list[Any]:
        with _RUN:
            return self._engine.run(prepared, wanted, context)

    def _run_planned(self, feed: dict[str, Any]) -> list[Any] | None:
        """All outputs as Python values, if these shapes have a plan; None otherwise."""
        results = self.run_planned(feed)
        if results is None:
            return None
        views = []
        for a in results:
            views.append(a.view() if type(a) is np.ndarray else a)  # noqa: PERF401 as in CpuExecutable.run_planned
        return views

    def run_planned(self, feed: dict[str, Any], places: Mapping[int, Any] | None = None) -> Sequence[Any] | None:
        """All outputs in the engine's form, if these shapes have a plan; ``places`` are as in ``Engine.places``."""
        planned: Any = self._planned
        checks = self._checks
        if planned is None or len(feed) != len(checks):
            return None
        try:
            args = []
            for name, check in checks.items():
                args.append(check(feed[name]))
        except KeyError:
            return None
        try:
            results: Sequence[Any] | None = planned(args, places) if places else planned(args)
        except Exception:
            with _RUN:
                raise
        return results

    def compute(
        self,
        wanted: Sequence[str],
        feed: Mapping[str, Any],
        run_options: RunOptions | None,
        context: RunContext | None = None,
    ) -> list[Any]:
        """The outputs in the engine's form, under the run's options."""
        context = context or RunContext()
        if run_options is None:
            return self._traced(wanted, self.prepare(feed), context)
        if not isinstance(run_options, RunOptions):
            raise TypeError(f"run_options must be RunOptions, not {type(run_options).__name__}")
        check_severity(run_options.log_severity_level, "run")
        if run_options._adapters:
            feed = {**feed, **{n: a for lora in run_options._adapters for n, a in lora._parameters.items()}}
        config_keys.review(run_options._config, config_keys.RUN_KEYS, strict=self._strict, stacklevel=5)
        run_options._under_way.add(context)
        try:
            context.stop = context.stop or run_options.terminate
            context.check()
            return self._traced(wanted, self.prepare(feed), context)
        finally:
            run_options._under_way.discard(context)
            if "cpu:0" in run_options._config.get(SHRINKAGE_KEY, "").split(";"):
                for release in self._releases:
                    release()

    def _traced(self, wanted: Sequence[str], prepared: dict[str, Any], context: RunContext) -> list[Any]:
        trace = self._trace
        if trace is None:
            return self._run(prepared, wanted, context)
        context.record, context.record_part = trace.node, trace.part
        start = time.perf_counter_ns()
        results = self._run(prepared, wanted, context)
        end = time.perf_counter_ns()
        trace.run(start, end, prepared, results)
        return results

    def run_async(
        self,
        output_names: Sequence[str] | None,
        feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run on another thread, then ``callback(results, user_data, error)``; the error is empty on success."""

        def job() -> None:
            try:
                results, error = self.run(output_names, feed, run_options), ""
            except Exception as e:
                results, error = [], e.what if isinstance(e, SardonyxError) else str(e)
            callback(results, user_data, error)

        submit(job)

    def run_with_ort_values(
        self, feed: Mapping[str, NativeValue], output_names: Sequence[str] | None, run_options: RunOptions | None = None
    ) -> NativeValueVector:
        results = self.compute(self.wanted(output_names), feed, run_options)
        return NativeValueVector([NativeValue(v) for v in results])

    def run_with_iobinding(self, binding: Any, run_options: RunOptions | None = None) -> None:
        binding.run(self, run_options)

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feed_values: NativeValueVector,
        fetch_names: Sequence[str],
        fetches: NativeValueVector,
        fetch_devices: Sequence[NativeDevice],
    ) -> None:
        """Write the outputs to ``fetches``; existing values are filled in place."""
        feed = dict(zip(feed_names, feed_values, strict=True))
        results = [NativeValue(v) for v in self.compute(self.wanted(fetch_names), feed, run_options)]
        for i, target in enumerate(fetches):
            if target.has_value() and target.is_tensor() and target.shape() == results[i].shape():
                target.update_inplace(results[i])
                results[i] = target
        fetches.replace(results)


def _as_written(source: Any, apart: BuildOptions, options: SessionOptions) -> Engine:
    """An engine for feeds that contradict the names of dimensions; its first run logs a warning."""
    said = "sizes of inputs contradict the model's names for them: it is compiled again, for sizes that differ"
    log.emit(log.WARNING, said, logid=options.logid, threshold=options.log_severity_level)
    return compiled_cache.engine_of(source, apart)
