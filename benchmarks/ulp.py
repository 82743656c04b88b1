"""Errors of the CPU provider's elementary functions, in units in the last place (ulp).

python -m benchmarks.ulp [--stride N] [--functions exp,log] [--markdown FILE]

f32: every N-th of all 2^32 floats, against numpy in float64; ``--stride 1`` takes all, some minutes for each function.
f64: a random sample, half of it of bit patterns and half around 1, against numpy in long double. ``pow`` and ``fmod``
have two arguments, so theirs is a random sample in both types.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import page
from sardonyx import dtypes
from sardonyx.ir.scalar import Emitter, trace
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.math import functions, scalar_program
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Val, f32, f64, i64, u64
from sardonyx.providers.cpu.machine import isa

Array = np.ndarray[Any, Any]
CHUNK = 1 << 20
PRIME_STRIDE = 257
WIDER = {np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}

_c_erf = np.vectorize(math.erf, otypes=[np.float64])


def _erf(x: Array) -> Array:
    """C's erf, called where neither two terms of the series at 0 nor the limit are exact in float64."""
    size = np.abs(x)
    near, far = size < 2.0**-13, size > 6
    out: Array = np.where(near, x * ((1 - x * x / 3) * (2 / math.sqrt(math.pi))), np.sign(x))
    between = ~(near | far)
    out[between] = _c_erf(x[between]) if between.any() else 0.0
    return out


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


UNARY: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "exp_nonpositive": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "erf": _erf,
    "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "sigmoid": _sigmoid,
}  # fmt: skip
BINARY: dict[str, Callable[[Array, Array], Array]] = {"pow": np.power, "fmod": np.fmod}
WHERE_NORMAL = {"exp_nonpositive": 0.0, "sigmoid": math.inf}
"""Functions that are measured where their results are normal, up to an argument."""


def of_vectors(k: Kernel, name: str, *args: Val) -> Val:
    """What kernels compute under a name: a function, or a scalar program."""
    if name == "sigmoid":
        return scalar_program.emit(k, trace(Emitter.sigmoid, (True,)), args, [a.dtype for a in args])
    return getattr(functions, name)(k, *args)  # type: ignore[no-any-return]


@dataclass
class Error:
    """Of many arguments: the worst error, where it is, the mean, and how many there were."""

    worst: float = 0.0
    at: tuple[float, ...] = ()
    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)

    def add(self, errors: Array, *args: Array) -> None:
        if errors.size:
            i = int(np.argmax(errors))
            if errors[i] >= self.worst:
                self.worst, self.at = float(errors[i]), tuple(float(a[i]) for a in args)
            self.total += float(errors[np.isfinite(errors)].sum())
            self.count += errors.size


@kernel(x=("dtype",), z=("dtype",), y=("dtype",), count=i64)
def apply(k: Any, x: Any, z: Any, y: Any, count: Any, *, name: str, dtype: Any) -> None:
    """A function of one argument, or of two."""
    for t in k.tiles(count, k.lanes * 32 // dtype.bits):
        args = (x.load(t), z.load(t)) if name in BINARY else (x.load(t),)
        y.store(t, of_vectors(k, name, *args))


def evaluate(name: str, *args: Array, cpu: str | None = None) -> Array:
    x, y = args[0], np.zeros_like(args[0])
    spec = apply(name=name, dtype=dtypes.of_numpy(x.dtype))
    Launch(spec, {"x": x, "z": args[-1], "y": y, "count": x.size}, isa=isa.named(cpu))()
    return y


@kernel(x=(f32,), exact=(f64,), worst=(f64,), where=(i64,), total=(f64,), count=i64)
def measure(k: Any, x: Any, exact: Any, worst: Any, where: Any, total: Any, count: Any, *, name: str) -> None:
    """The errors of an f32 function, lane by lane: the largest, its index, and the sum of those that are finite."""
    lanes = k.lanes
    largest, index, sum_ = k.var(k.const(-1.0, f64, lanes)), k.var(k.zeros(i64, lanes)), k.var(k.zeros(f64, lanes))
    for t in k.tiles(count):
        error = t.keep(_error(k, of_vectors(k, name, x.load(t)), exact.load(t)), 0.0)
        is_larger = error > largest.get()
        index.set(k.select(is_larger, k.iota(i64) + t.index, index.get()))
        largest.set(k.select(is_larger, error, largest.get()))
        sum_ += k.select(error < math.inf, error, 0.0)
    worst.store(0, largest.get())
    where.store(0, index.get())
    total.store(0, sum_.get())


def _error(k: Kernel, got: Val, exact: Val) -> Val:
    """In ulp of the f32 nearest to what is exact; infinite where one of both, but not the other, is a number."""
    right = k.cast(exact, f32)
    exponent = k.bitcast(k.bitcast(exact, u64) & (0x7FF << 52), f64)
    unit = k.max(2.0**-149, exponent * 2.0**-23)
    is_same = got.eq(right) | (got.ne(got) & right.ne(right))
    is_finite = (k.abs(got) < math.inf) & (k.abs(right) < math.inf)
    distance = k.abs(k.cast(got, f64) - exact) / unit
    return k.select(is_finite, distance, k.select(is_same, k.zeros(f64, got.lanes), math.inf))


def measured(name: str, chunks: Iterator[Array]) -> Error:
    """An f32 function over chunks of arguments."""
    found, lanes = Error(), isa.current().lanes
    for x in chunks:
        with np.errstate(all="ignore"):
            exact = UNARY[name](x.astype(np.float64))
        worst, where, total = np.zeros(lanes), np.zeros(lanes, np.int64), np.zeros(lanes)
        arguments = {"x": x, "exact": exact, "worst": worst, "where": where, "total": total, "count": x.size}
        Launch(measure(name=name), arguments)()
        lane = int(np.argmax(worst))
        if worst[lane] > found.worst:
            found.worst, found.at = float(worst[lane]), (float(x[where[lane]]),)
        found.total += float(total.sum())
        found.count += x.size
    return found


def every_float(stride: int, name: str = "") -> Iterator[Array]:
    """Every ``stride``-th f32, in chunks; of ``WHERE_NORMAL``, those they are measured at."""
    for start in range(0, 1 << 32, CHUNK * stride):
        stop = min(start + CHUNK * stride, 1 << 32)
        x = np.arange(start, stop, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)
        yield x[(x <= WHERE_NORMAL[name]) & (x > -86.9)] if name in WHERE_NORMAL else x


def errors_in_ulp(got: Array, exact: Array) -> Array:
    """``exact`` has a wider type; errors count in ulp of the type of ``got``."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        right = exact.astype(got.dtype)
        exponent = np.frexp(np.maximum(np.abs(exact), exact.dtype.type(info.tiny)))[1]
        distance = np.abs(got.astype(exact.dtype) - exact) / np.ldexp(exact.dtype.type(1), exponent - 1 - info.nmant)
    is_same = (got == right) | (np.isnan(got) & np.isnan(right))
    is_finite = np.isfinite(got) & np.isfinite(right)
    return np.asarray(np.where(is_finite, distance, np.where(is_same, 0.0, np.inf)), np.float64)


def sampled(name: str, dtype: Any, count: int, seed: int = 0) -> Error:
    """A function over random arguments."""
    rng, found = np.random.default_rng(seed), Error()
    args = [_sample(rng, np.dtype(dtype), count) for _ in range(2 if name in BINARY else 1)]
    if name in WHERE_NORMAL:
        args = [a[(a <= WHERE_NORMAL[name]) & (a > -700)] for a in args]
    fn: Callable[..., Array] = BINARY[name] if name in BINARY else UNARY[name]
    wide = np.float64 if name == "erf" else WIDER[np.dtype(dtype)]
    with np.errstate(all="ignore"):
        exact = fn(*(a.astype(wide) for a in args))
    found.add(errors_in_ulp(evaluate(name, *args), np.asarray(exact, WIDER[np.dtype(dtype)])), *args)
    return found


def _sample(rng: np.random.Generator, dtype: np.dtype[Any], count: int) -> Array:
    patterns = rng.integers(0, 1 << 8 * dtype.itemsize, count // 2, np.uint64).astype(f"u{dtype.itemsize}").view(dtype)
    around = rng.standard_normal(count // 2) * 10.0 ** rng.uniform(-3, 2, count // 2)
    return np.concatenate([patterns, around.astype(dtype)])


def table(names: list[str], stride: int, count: int) -> Iterator[str]:
    yield "| function | f32: worst | at | mean | f64: worst | at | mean |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name in names:
        narrow = sampled(name, np.float32, count) if name in BINARY else measured(name, every_float(stride, name))
        yield f"| {name} | {_cells(narrow)} | {_cells(sampled(name, np.float64, count))} |"


def _cells(error: Error) -> str:
    return f"{error.worst:.3f} | {', '.join(f'{a:.9g}' for a in error.at)} | {error.mean:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, default=PRIME_STRIDE, help="take every N-th float")
    parser.add_argument("--functions", default=",".join([*UNARY, *BINARY]))
    parser.add_argument("--sample", type=int, default=1 << 19, help="arguments of f64, and of two-argument, functions")
    parser.add_argument("--markdown", type=Path, help="write the page there")
    options = parser.parse_args()
    machine = isa.current()
    taken = "all 2^32 floats" if options.stride == 1 else f"every {options.stride}-th of the 2^32 floats"
    lines = [
        page.head("Errors of the elementary functions", ("numpy",), machine.name),
        f"In ulp. f32: {taken}, against numpy in float64.",
        f"f64, and functions of two arguments: {options.sample:,} random ones, against numpy in long double",
        f"({np.finfo(np.longdouble).nmant} bits); erf against C's in float64.",
        "`exp_nonpositive` and `sigmoid` are measured where their results are normal; below, they may be 0.",
        "",
    ]
    print("\n".join(lines))
    for line in table(options.functions.split(","), options.stride, options.sample):
        print(line, flush=True)
        lines.append(line)
    page.write(options.markdown, "\n".join(lines))


if __name__ == "__main__":
    main()
