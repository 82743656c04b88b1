"""Groups of work: what lowering gives to a provider that compiles.

A group reads and writes *views*: strided windows of storages. Its sizes are numbers or symbolic dimensions
(``ir.dims``), so one list of groups serves every shape of the inputs.

    Loop          scalar expressions over a box of indices, with reductions over its last axes
    Contraction   sums of products (MatMul, Gemm), with what follows element by element
    Convolution   sums of products over windows of an image, likewise; of bytes: IntegerConvolution
    Pool          the largest or the mean of each window of an image, likewise
    Attention     softmax(q k^T + mask) v
    Gather        rows picked by an index tensor; Pick, elements; Scatter, the way back
    Accumulate    running sums; Best, the k largest
    Find, Keep, Distinct, Suppress    results whose size the run finds out
    Recurrence    steps over time, each with sums of products and states
    Forest        weights of the leaves that rows reach in decision trees
    Resample      an image read between its elements: short weighted sums along axes, likewise
    Sample        an image read at places that data name, likewise
    Regions       cells of parts of images that data name, likewise
    LinearAttention   a state that tokens write and read in order
    Gather        rows picked by an index tensor
    Forest        weights of the leaves that rows reach in decision trees
    Branch        one of two lists of groups
    Repeat        a list of groups, again and again
    Fill          numbers that follow from the shapes alone
    Draw          a place in a stream of random numbers
    Bits          the same bits as another type
    Custom        a kernel of the user's own

A new kind of group is a class here, its meaning in numpy in ``lower.interpret``, and for each provider an entry in its
table of families.
"""

from sardonyx.lower.groups.attention import Attention
from sardonyx.lower.groups.base import Group, Storage, View
from sardonyx.lower.groups.bits import Bits
from sardonyx.lower.groups.contraction import Contraction
from sardonyx.lower.groups.control import Branch, Moving, Repeat
from sardonyx.lower.groups.custom import Custom
from sardonyx.lower.groups.draw import Draw
from sardonyx.lower.groups.expression import Apply, Count, Expression, Reduce
from sardonyx.lower.groups.fill import Fill
from sardonyx.lower.groups.finished import Finished
from sardonyx.lower.groups.forest import Forest
from sardonyx.lower.groups.found import Distinct, Find, Keep, Suppress
from sardonyx.lower.groups.gather import Gather, Pick, Scatter
from sardonyx.lower.groups.image import Convolution, Pool, Window
from sardonyx.lower.groups.integer_convolution import IntegerConvolution
from sardonyx.lower.groups.linear_attention import LinearAttention
from sardonyx.lower.groups.loop import Loop
from sardonyx.lower.groups.order import Accumulate, Best
from sardonyx.lower.groups.recurrence import Recurrence, Stage
from sardonyx.lower.groups.regions import Regions
from sardonyx.lower.groups.resample import Phases, Resample, Table
from sardonyx.lower.groups.sample import Sample

__all__ = [
    "Accumulate",
    "Apply",
    "Attention",
    "Best",
    "Bits",
    "Branch",
    "Contraction",
    "Convolution",
    "Count",
    "Custom",
    "Distinct",
    "Draw",
    "Expression",
    "Fill",
    "Find",
    "Finished",
    "Forest",
    "Gather",
    "Group",
    "IntegerConvolution",
    "Keep",
    "LinearAttention",
    "Loop",
    "Moving",
    "Phases",
    "Pick",
    "Pool",
    "Recurrence",
    "Reduce",
    "Regions",
    "Repeat",
    "Resample",
    "Sample",
    "Scatter",
    "Stage",
    "Storage",
    "Suppress",
    "Table",
    "View",
    "Window",
]
