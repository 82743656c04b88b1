"""Inputs and outputs bound to memory ahead of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import SardonyxError
from sardonyx.partition.provider import RunContext
from sardonyx.session.devices import NativeDevice, OrtDevice, require_cpu
from sardonyx.session.misuse import ExecutionError, Misuse
from sardonyx.session.native_values import NativeValue, NativeValueVector, element_type, memory_at
from sardonyx.session.options import RunOptions
from sardonyx.session.state import State
from sardonyx.session.values import OrtValue

if TYPE_CHECKING:
    from sardonyx.session.native import NativeSession
    from sardonyx.session.session import Session

Array = np.ndarray[Any, Any]


class SessionIOBinding:
    """Names bound to values; an output bound without memory gets a new value in every run."""

    def __init__(self, session: NativeSession) -> None:
        self._session = session
        self._inputs: dict[str, NativeValue] = {}
        self._outputs: dict[str, NativeValue] = {}
        self._in_place: dict[str, bool] = {}
        self._states: dict[str, State] = {}
        self._ready: tuple[dict[str, Any], dict[int, Array]] | None = None
        """The bound inputs and the memory of bound outputs, valid until the bindings change."""

    def bind_input(self, name: str, *what: Any) -> None:
        """``bind_input(name, array)`` or ``bind_input(name, device, element_type, shape, pointer)``."""
        if name not in {m.name for m in (*self._session.inputs_meta, *self._session.overridable_initializers)}:
            raise Misuse(f"Failed to find NodeArg with name: {name} in the def list")
        if len(what) == 1:
            (array,) = what
            if isinstance(array, list) and all(isinstance(a, np.ndarray) for a in array) and array:
                raise Misuse("Only binding Tensors is currently supported", where=f"input {name!r}")
            if not isinstance(array, np.ndarray):
                raise Misuse("Unable to create OrtValue from the given python object", got=type(array).__name__)
            if array.dtype.kind in "OSTU":
                raise Misuse(
                    "Only binding non-string Tensors is currently supported",
                    where=f"input {name!r}",
                    hint="feed strings to run()",
                )
            self.bind_ortvalue_input(name, NativeValue(array))
            return
        self.bind_ortvalue_input(name, _at(*what))

    def bind_ortvalue_input(self, name: str, value: NativeValue) -> None:
        self._inputs[name] = value
        self._states = {output: state for output, state in self._states.items() if state.input_name != name}
        self._ready = None

    def bind_output(self, name: str, device: NativeDevice, *memory: Any) -> None:
        """``bind_output(name, device)`` or ``bind_output(name, device, element_type, shape, pointer)``."""
        self._bind_output(name, _at(device, *memory) if memory else None)

    def bind_ortvalue_output(self, name: str, value: NativeValue) -> None:
        self._bind_output(name, value)

    def _bind_output(self, name: str, value: NativeValue | None) -> None:
        self._outputs[name] = NativeValue(None, filled=False) if value is None else value
        self._in_place[name] = value is not None
        self._states.pop(name, None)
        self._ready = None

    def bind_state(self, input_name: str, output_name: str, value: Array, capacity: int | None, axis: int) -> None:
        """Make every run replace an input, ``value`` at first, by an output."""
        self.bind_input(input_name, value)
        self._bind_output(output_name, None)
        self._states[output_name] = State(input_name, value, capacity, axis)

    def clear_binding_inputs(self) -> None:
        self._clear(self._inputs)

    def clear_binding_outputs(self) -> None:
        self._clear(self._outputs)

    def _clear(self, bound: dict[str, NativeValue]) -> None:
        bound.clear()
        self._states.clear()
        self._ready = None

    def synchronize_inputs(self) -> None:
        """No-op on the CPU."""

    def synchronize_outputs(self) -> None:
        """No-op on the CPU."""

    def get_outputs(self) -> NativeValueVector:
        return NativeValueVector(list(self._outputs.values()))

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Copies of the outputs."""
        if not all(v.filled for v in self._outputs.values()):
            raise Misuse("the outputs have no values yet", hint="call run_with_iobinding() first")
        return [v.value.copy() if isinstance(v.value, np.ndarray) else v.value for v in self._outputs.values()]

    def run(self, session: NativeSession, run_options: RunOptions | None) -> None:
        """Compute the bound outputs from the bound inputs."""
        if not self._outputs:
            raise ExecutionError("Error in execution: At least one output should be requested.")
        try:
            states = self._states
            results = self._run_planned(session) if run_options is None and not states else None
            if results is None:
                results = self._computed(session, run_options)
            for (name, target), result in zip(list(self._outputs.items()), results, strict=True):
                if name in states:
                    states[name].take(result)
                    self._outputs[name] = NativeValue(states[name].value)
                elif target.filled and result is target.value:
                    pass
                elif self._in_place[name] and target.is_tensor():
                    self._fill(name, target, result)
                else:
                    self._outputs[name] = NativeValue(result)
        except SardonyxError as error:
            raise ExecutionError(f"Error in execution: {error}") from error

    def _run_planned(self, session: NativeSession) -> list[Any] | None:
        """The bound outputs, if these shapes have a plan; None otherwise."""
        if self._ready is None:
            session.wanted(list(self._outputs))
            self._ready = {name: v.value for name, v in self._inputs.items()}, self._places(session)
        results = session.run_planned(*self._ready)
        return None if results is None else session.engine.select_outputs(results, self._outputs)

    def _computed(self, session: NativeSession, run_options: RunOptions | None) -> list[Any]:
        context, states, wanted = RunContext(), self._states, session.wanted(list(self._outputs))
        context.places = self._places(session)
        context.held = session.engine.held(
            (s.input_name, name, s.axis, s.memory) for name, s in states.items() if s.memory is not None
        )
        inputs = {**self._inputs, **{s.input_name: NativeValue(s.value) for s in states.values()}}
        return session.compute(wanted, inputs, run_options, context)

    def _places(self, session: NativeSession) -> dict[int, Array]:
        """The memory of bound outputs."""
        bound = {name: v.value for name, v in self._outputs.items() if self._in_place[name]}
        return session.engine.places({n: a for n, a in bound.items() if isinstance(a, np.ndarray)})

    @staticmethod
    def _fill(name: str, target: NativeValue, result: Any) -> None:
        into = target.numpy()
        if not isinstance(result, np.ndarray) or result.dtype != into.dtype:
            raise Misuse(
                f"Unexpected output data type. Actual: ({target.data_type()}) , "
                f"expected: ({NativeValue(result).data_type()})",
                where=f"output {name!r}",
            )
        if result.shape != into.shape:
            wrong = "".join(
                f" index: {i} Got: {got} Expected: {want}\n"
                for i, (got, want) in enumerate(zip(into.shape, result.shape, strict=False))
                if got != want
            )
            raise Misuse(
                f"Got invalid dimensions for output: {name} for the following indices\n{wrong} "
                "Please fix either the inputs/outputs or the model.",
                expected=list(result.shape),
                got=list(into.shape),
            )
        np.copyto(into, result)


class IOBinding:
    """The bindings of one session, by device names."""

    def __init__(self, session: Session) -> None:
        self._session = session._sess
        self._iobinding = SessionIOBinding(session._sess)

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an array; runs see later changes to its contents."""
        self._iobinding.bind_input(name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind the memory at an address; ``element_type`` is a numpy type or an ``onnx.TensorProto.DataType``."""
        device = OrtDevice.make(device_type, device_id)._get_c_device()
        self._iobinding.bind_input(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._iobinding.bind_ortvalue_input(name, ortvalue._ortvalue)

    def synchronize_inputs(self) -> None:
        self._iobinding.synchronize_inputs()

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to the memory at an address or, without an address, to a new value in every run."""
        device = OrtDevice.make(device_type, device_id)._get_c_device()
        if buffer_ptr is None:
            self._iobinding.bind_output(name, device)
            return
        if element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        self._iobinding.bind_output(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._iobinding.bind_ortvalue_output(name, ortvalue._ortvalue)

    def bind_state(
        self, input_name: str, output_name: str, value: Array | OrtValue, *, capacity: int | None = None, axis: int = -2
    ) -> None:
        """Bind an input and an output as one state: every run reads it, ``value`` at first, and replaces it.

        A state that grows, such as a decoder's KV cache, gets room for ``capacity`` elements along ``axis``. Runs then
        append to it in place and copy nothing. Binding one of the two to something else ends the state.
        """
        array = value.numpy() if isinstance(value, OrtValue) else value
        self._iobinding.bind_state(input_name, output_name, array, capacity, axis)

    def synchronize_outputs(self) -> None:
        self._iobinding.synchronize_outputs()

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run."""
        return [OrtValue(v) for v in self._iobinding.get_outputs()]

    def get_outputs_as_ortvaluevector(self) -> NativeValueVector:
        return self._iobinding.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        return self._iobinding.copy_outputs_to_cpu()

    def clear_binding_inputs(self) -> None:
        self._iobinding.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        self._iobinding.clear_binding_outputs()


def _at(device: NativeDevice, spec: Any, shape: Sequence[int], pointer: int) -> NativeValue:
    require_cpu(device)
    return NativeValue(memory_at(pointer, element_type(spec), shape))
