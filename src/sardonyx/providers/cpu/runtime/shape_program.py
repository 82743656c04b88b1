"""What argument blocks hold of a shape, written by the walk that first runs it.

Each object that Python asks after a run takes a microsecond, since no cache is warm. So the values of expressions are
made here, by a program of ``plan.sizes``: rows that are carried out one by one, for which nothing is compiled.
"""

from __future__ import annotations

from sardonyx.plan.sizes import LARGEST, Op
from sardonyx.providers.cpu.language.context import Code, Context, Sized
from sardonyx.providers.cpu.language.dsl import Kernel, function
from sardonyx.providers.cpu.language.values import Buf, Val, bool_, f64, i64

ROW_WORDS = 3


def take_sizes(k: Kernel, context: Buf) -> None:
    """Write the values of another shape than the last run's into the argument blocks; leave the function, with an error
    in the context, where one is too long."""
    program, words, sized = (k.memory(context.load(at), i64) for at in (Context.PROGRAM, Context.ARGS, Context.SIZED))
    values = context.at(Context.SLOTS)
    bad = carry_out(k, values, context.load(Context.NAME_COUNT), program, context.load(Context.PROGRAM_COUNT))
    with k.when(bad, likely=False):
        context.store(Context.ERROR, Code.TOO_LONG)
        k.b.leave()
    with k.loop(0, context.load(Context.SIZED_COUNT)) as i:
        row = sized.at(i * Sized.WORDS)
        words.store(row.load(Sized.AT), values.load(row.load(Sized.BY)) + row.load(Sized.PLUS))
    context.store(Context.IS_NEW, 0)


def carry_out(k: Kernel, values: Buf, names: Val, program: Buf, rows: Val) -> Val:
    """Write the values that a program makes behind the sizes of names; tell whether one is too long, or has none."""
    bad = k.var(k.value(False, bool_))
    with k.loop(0, names) as i:
        bad.set(bad.get() | (values.load(i) > LARGEST))
    with k.loop(0, rows) as i:
        result, is_bad = _row(k, values, program.at(i * ROW_WORDS))
        values.store(names + i, k.select(is_bad, 0, result))  # the least word, divided by -1, ends a process on x86
        bad.set(bad.get() | is_bad)
    return bad.get()


def _row(k: Kernel, values: Buf, row: Buf) -> tuple[Val, Val]:
    """What a row makes, and whether that is too long or has no meaning."""
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
    # Reals round, but by far less than what lies between the bound and 64 bits.
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
    """A program by itself, for tests."""
    bad.store(0, k.cast(carry_out(k, values, names, program, rows), i64))
