"""Names of new nodes and values: onnxruntime's, which tools that read quantized models know."""

from __future__ import annotations


def quantize_node(tensor: str) -> str:
    return f"{tensor}_QuantizeLinear"


def dequantize_node(tensor: str) -> str:
    return f"{tensor}_DequantizeLinear"


def quantize_input(tensor: str) -> str:
    """The real that a QuantizeLinear reads, where its own name goes to the result."""
    return f"{tensor}_QuantizeLinear_Input"


def quantize_output(tensor: str) -> str:
    return f"{tensor}_QuantizeLinear_Output"


def dequantize_output(tensor: str) -> str:
    return f"{tensor}_DequantizeLinear_Output"


def quantized(tensor: str) -> str:
    return f"{tensor}_quantized"


def scale(tensor: str) -> str:
    return f"{tensor}_scale"


def zero_point(tensor: str) -> str:
    return f"{tensor}_zero_point"
