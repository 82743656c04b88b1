"""ModelCompiler: a model optimized ahead of time.

The providers of this build have no compiled form of their own to embed, so the result is the model at the requested
level of optimization, without EPContext nodes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sardonyx.errors import Fail, InvalidArgument, NotImplemented
from sardonyx.forks import cached_property
from sardonyx.records import Record
from sardonyx.session import saving
from sardonyx.session.enums import GraphOptimizationLevel, OrtCompileApiFlags
from sardonyx.session.native import NativeSession
from sardonyx.session.native_values import NativeValue
from sardonyx.session.options import SessionOptions
from sardonyx.session.values import OrtValue
from sardonyx.writing import write_whole

if TYPE_CHECKING:
    import onnx


class OrtExternalInitializerInfo(Record):
    """Where an initializer lies: a file, an offset, a number of bytes."""

    filepath: str
    file_offset: int
    byte_size: int


class OrtEpContextData:
    """A provider's compiled data, read in chunks."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def size(self) -> int:
        return len(self._content)

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        return self._content[offset : None if length is None else offset + length]


class OrtEpContextDataBuffer:
    """A buffer for a provider's compiled data, written in chunks."""

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self._content: bytearray | None = None

    @property
    def is_allocated(self) -> bool:
        return self._content is not None

    @property
    def size(self) -> int:
        return len(self._content or b"")

    def allocate(self, size: int) -> None:
        if size > self.max_size:
            raise InvalidArgument("more than the buffer may hold", expected=f"at most {self.max_size}", got=size)
        self._content = bytearray(size)

    def write(self, data: Any, offset: int = 0) -> None:
        if self._content is None or offset < 0 or offset + len(data) > len(self._content):
            raise InvalidArgument("the write is outside the buffer", expected=self.size, got=offset + len(data))
        self._content[offset : offset + len(data)] = data


GetInitializerLocationFunc = Callable[
    [str, OrtValue, "OrtExternalInitializerInfo | None"], "OrtExternalInitializerInfo | None"
]
NativeLocationFunc = Callable[
    [str, NativeValue, "OrtExternalInitializerInfo | None"], "OrtExternalInitializerInfo | None"
]


def make_get_initializer_location_func_wrapper(function: GetInitializerLocationFunc) -> NativeLocationFunc:
    """The same function for ``capi``'s values."""
    return lambda name, value, info: function(name, OrtValue(value), info)


class NativeModelCompiler:
    """``capi``'s ModelCompiler."""

    def __init__(
        self,
        session_options: SessionOptions,
        source: Any,
        is_path: bool,
        embed_compiled_data: bool = False,
        external_initializers_file: str = "",
        external_initializers_minimum: int = 1024,
        flags: Any = OrtCompileApiFlags.NONE,
        level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        locate: NativeLocationFunc | None = None,
    ) -> None:
        if is_path and not os.path.exists(source):
            raise InvalidArgument(f'Input model path does not exist: "{source}"')
        self._options = session_options.__copy__()
        self._options.graph_optimization_level = level
        self._source, self._is_path = source, is_path
        self._external, self._minimum = external_initializers_file, external_initializers_minimum
        self._flags, self._locate = int(flags), locate

    def compile_to_file(self, output_path: str | None = None) -> None:
        if not output_path:
            if not self._is_path:
                raise InvalidArgument("an output path is needed for a model that came as bytes")
            stem, _ = os.path.splitext(self._source)
            output_path = f"{stem}_ctx.onnx"
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and os.path.exists(output_path):
            raise Fail(f"the output model exists already: {output_path}")
        content = self.compile_to_bytes()
        if self._external:
            import onnx

            proto = onnx.load_model_from_string(content)
            saving.write_external(proto, output_path, self._external, self._minimum)
            return
        try:
            write_whole(output_path, [content])
        except OSError as error:
            raise Fail(f"the model cannot be written ({error.strerror})", where=output_path) from None

    def compile_to_bytes(self) -> bytes:
        import onnx

        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                path = os.path.join(folder, "model.onnx")
                self._optimize_to(path)
                proto = onnx.load(path)
        except OSError as error:
            where = tempfile.gettempdir()
            raise Fail(f"there is no room for the compiled model ({error.strerror})", where=where) from None
        if self._locate is not None:
            saving.relocate(proto, self._placed)
        return bytes(proto.SerializeToString())

    def _placed(self, tensor: onnx.TensorProto) -> tuple[str, int, int] | None:
        """Where the caller's function puts an initializer."""
        from onnx import numpy_helper

        assert self._locate is not None
        value = NativeValue(numpy_helper.to_array(tensor))
        info = self._locate(tensor.name, value, self._external_infos.get(tensor.name))
        return None if info is None else (info.filepath, info.file_offset, info.byte_size)

    def compile_to_stream(self, write_function: Callable[[bytes], None]) -> None:
        content = self.compile_to_bytes()
        try:
            write_function(content)
        except Exception as error:
            raise Fail(f"the write function raised {type(error).__name__}: {error}") from error

    def set_ep_context_data_write_func(self, write_func: Callable[[str, OrtEpContextData], None]) -> None:
        raise NotImplemented("no provider of this build writes EPContext data")

    def clear_ep_context_data_write_func(self) -> None:
        """No-op: there is never one."""

    def _optimize_to(self, path: str) -> None:
        if self._flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            raise Fail(
                "Unable to compile any nodes: no provider of this session keeps a compiled form",
                hint="leave out OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED to write the optimized model",
            )
        options = self._options.__copy__()
        options.optimized_model_filepath = path
        session = NativeSession(options, self._source, self._is_path)
        session.initialize_session([], [])

    @cached_property
    def _external_infos(self) -> dict[str, OrtExternalInitializerInfo]:
        """Where the input model keeps its external initializers."""
        import onnx

        if self._is_path:
            proto = onnx.load(self._source, load_external_data=False)
        else:
            proto = onnx.load_model_from_string(self._source)
        infos = {}
        for tensor in proto.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                at = {e.key: e.value for e in tensor.external_data}
                infos[tensor.name] = OrtExternalInitializerInfo(
                    at["location"], int(at.get("offset", 0)), int(at.get("length", 0))
                )
        return infos


class ModelCompiler:
    """Writes a model at an optimization level to a file, to bytes or to a stream."""

    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: Any,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: Any = None,
        external_initializers_size_threshold: int = 1024,
        flags: Any = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: GetInitializerLocationFunc | None = None,
    ) -> None:
        source = input_model_path_or_bytes
        if not isinstance(source, (str, os.PathLike, bytes)):
            raise TypeError(f"Unable to load from type '{type(source)}'")
        is_path = not isinstance(source, bytes)
        if not source:
            raise ValueError("Input model path is empty" if is_path else "Input model bytes array is empty")
        external = external_initializers_file_path or ""
        if not isinstance(external, (str, os.PathLike)):
            raise TypeError(f"Output external initializer filepath is of unexpected type '{type(external)}'")
        if external and get_initializer_location_func is not None:
            raise ValueError(
                "Cannot initialize ModelCompiler with both `external_initializers_file_path` "
                "and `get_initializer_location_func`"
            )
        locate = get_initializer_location_func
        self._model_compiler = NativeModelCompiler(
            sess_options,
            os.fspath(source) if is_path else source,
            is_path,
            embed_compiled_data_into_model,
            os.fspath(external),
            external_initializers_size_threshold,
            flags,
            graph_optimization_level,
            None if locate is None else make_get_initializer_location_func_wrapper(locate),
        )

    def compile_to_file(self, output_model_path: Any = None) -> None:
        """Write a file; without a path, ``model.onnx`` becomes ``model_ctx.onnx``."""
        if output_model_path and not isinstance(output_model_path, (str, os.PathLike)):
            raise TypeError(f"Output model's filepath is of unexpected type '{type(output_model_path)}'")
        self._model_compiler.compile_to_file(os.fspath(output_model_path) if output_model_path else None)

    def compile_to_bytes(self) -> bytes:
        return self._model_compiler.compile_to_bytes()

    def compile_to_stream(self, write_function: Callable[[bytes], None]) -> None:
        self._model_compiler.compile_to_stream(write_function)

    def set_ep_context_data_write_func(self, write_func: Callable[[str, OrtEpContextData], None]) -> None:
        self._model_compiler.set_ep_context_data_write_func(write_func)

    def clear_ep_context_data_write_func(self) -> None:
        self._model_compiler.clear_ep_context_data_write_func()
