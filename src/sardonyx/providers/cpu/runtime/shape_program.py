"""Shape programs: native code that fills a new shape's sizes into the argument blocks.

A run leaves Python's caches cold, so computing sizes in Python costs a microsecond each. Instead a small interpreter in
native code evaluates the expressions of sizes, given as rows of ``plan.sizes``; nothing is compiled for a shape.
"""

from __future__ import annotations

from sardonyx.plan.sizes import LARGEST, Op
from sardonyx.providers.cpu.language.context import Code, Context, Sized
from sardonyx.providers.cpu.language.dsl import Kernel, function
from sardonyx.providers.cpu.language.values import Buf, Val, bool_, f64, i64

ROW_WORDS = 3


def write_sizes(k: Kernel, context: Buf) -> None:
    """Write a new shape's values into the argument blocks. A value of more than 62 bits sets the context's error and
    leaves the function."""
    program, words, sized = (k.memory(context.load(at), i64) for at in (Context.PROGRAM, Context.ARGS, Context.SIZED))
    values = context.at(Context.SLOTS)
    bad = evaluate_program(k, values, context.load(Context.NAME_COUNT), program, context.load(Context.PROGRAM_COUNT))
    with k.when(bad, likely=False):
        context.store(Context.ERROR, Code.TOO_LONG)
        k.b.leave()
    with k.loop(0, context.load(Context.SIZED_COUNT)) as i:
        row = sized.at(i * Sized.WORDS)
        words.store(row.load(Sized.AT), values.load(row.load(Sized.BY)) + row.load(Sized.PLUS))
    context.store(Context.IS_NEW, 0)


def evaluate_program(k: Kernel, values: Buf, names: Val, program: Buf, rows: Val) -> Val:
    """Append the program's values to the sizes of names; tell whether one overflows or is undefined."""
    bad = k.var(k.value(False, bool_))
    with k.loop(0, names) as i:
        bad.set(bad.get() | (values.load(i) > LARGEST))
    with k.loop(0, rows) as i:
        result, is_bad = _row(k, values, program.at(i * ROW_WORDS))
        values.store(names + i, k.select(is_bad, 0, result))  # dividing the smallest int64 by -1 traps on x86
        bad.set(bad.get() | is_bad)
    return bad.get()


def _row(k: Kernel, values: Buf, row: Buf) -> tuple[Val, Val]:
    """The value of a row, and whether it overflows or is undefined."""
    op, first, second = (row.load(i) for i in range(ROW_WORDS))
    a, b = (values.load(k.select(op.eq(Op.NUMBER), 0, i)) for i in (first, second))
    quotient = k.var(0)
    with k.when(op.eq(Op.DIV) & b.ne(0)):
        quotient.set(_floor_div(k, a, b))
    made = {
        Op.ADD: a + b,
        Op.MUL: a * b,
        Op.DIV: quotient.get(),
        Op.MIN: k.min(a, b),
        Op.MAX: k.max(a, b),
        Op.OR: a | b,
        Op.BROADCAST: k.select(a.eq(1), b, a),
        Op.EQUAL: k.cast(a.eq(b), i64),
        Op.AT_LEAST: k.cast(a >= b, i64),
    }
    result = second
    for kind, value in made.items():
        result = k.select(op.eq(kind), value, result)
    # The product in f64 is off by far less than the distance of the bound from 64 bits.
    is_long = op.eq(Op.MUL) & (k.abs(k.cast(a, f64) * k.cast(b, f64)) > float(LARGEST))
    is_split = op.eq(Op.BROADCAST) & a.ne(b) & a.ne(1) & b.ne(1)
    is_endless = op.eq(Op.DIV) & b.eq(0)
    return result, is_long | is_split | is_endless | (result > LARGEST) | (result < -LARGEST)


def _floor_div(k: Kernel, a: Val, b: Val) -> Val:
    quotient = a / b
    rest = a - quotient * b
    return k.select(rest.ne(0) & ((rest ^ b) < 0), quotient - 1, quotient)


@function(values=(i64,), names=i64, program=(i64,), rows=i64, bad=(i64,))
def evaluate(k: Kernel, values: Buf, names: Val, program: Buf, rows: Val, bad: Buf) -> None:
    """Evaluate a program, for tests."""
    bad.store(0, k.cast(evaluate_program(k, values, names, program, rows), i64))
