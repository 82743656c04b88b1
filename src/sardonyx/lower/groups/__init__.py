"""Groups: the operations that lowering produces and that a compiling provider turns into kernels.

A group reads and writes *views*: strided windows of storages. Sizes are numbers or symbolic dimensions (``ir.dims``),
so one list of groups serves every input shape. A group with an *epilogue* applies a scalar expression to its results
before it stores them.

    Loop              scalar expressions over a box of indices, with reductions over its last axes
    Contraction       MatMul, Gemm; with an epilogue
    Convolution       with an epilogue; IntegerConvolution: of 8-bit integers;
                      CentredConvolution: of 8-bit integers, in f32
    Pool              max, mean or sum of each window of an image, with an epilogue
    Attention         softmax(q k^T + mask) v
    LinearAttention   a recurrent state that each token updates and reads
    Gather, GatherElements, Scatter
    CumulativeSum, TopK
    NonZero, CountedGather, Unique, NonMaxSuppression    results whose size depends on the data
    Recurrence        RNN, GRU, LSTM: matrix products and state updates, time step by time step
    Forest            decision trees: the weights of the leaves that each row reaches
    Resample          Resize, Pad: separable filters along some axes of an image, with an epilogue
    GridSample        interpolation at positions given by data, with an epilogue
    RoiAlign          pooled cells of regions of interest, with an epilogue
    Branch            one of two lists of groups
    Repeat            a list of groups, iterated
    Fill              integers that follow from the shapes alone
    RandomStream      a range of positions in a stream of random numbers
    BitCast           the same bits as another type
    Custom            a user's own kernel

A new kind of group is a class here, its numpy meaning in ``lower.interpret``, and for each provider an entry in its
table of families.
"""

from sardonyx.lower.groups.attention import Attention
from sardonyx.lower.groups.base import Group, Storage, View
from sardonyx.lower.groups.bit_cast import BitCast
from sardonyx.lower.groups.centred_convolution import CentredConvolution
from sardonyx.lower.groups.contraction import Contraction
from sardonyx.lower.groups.control import Branch, IndirectStorage, Repeat
from sardonyx.lower.groups.cumulative_sum import CumulativeSum
from sardonyx.lower.groups.custom import Custom
from sardonyx.lower.groups.data_dependent import CountedGather, NonMaxSuppression, NonZero, Unique
from sardonyx.lower.groups.epilogue import EpilogueGroup
from sardonyx.lower.groups.expression import Apply, Count, Expression, Reduce
from sardonyx.lower.groups.fill import Fill
from sardonyx.lower.groups.forest import Forest
from sardonyx.lower.groups.gather import Gather, GatherElements, Scatter
from sardonyx.lower.groups.grid_sample import GridSample
from sardonyx.lower.groups.image import Convolution, Pool, Window
from sardonyx.lower.groups.integer_convolution import IntegerConvolution
from sardonyx.lower.groups.linear_attention import LinearAttention
from sardonyx.lower.groups.loop import Loop
from sardonyx.lower.groups.random_stream import RandomStream
from sardonyx.lower.groups.recurrence import Recurrence, Stage
from sardonyx.lower.groups.resample import PolyphaseFilter, Resample, TapTable
from sardonyx.lower.groups.roi_align import RoiAlign
from sardonyx.lower.groups.top_k import TopK

__all__ = [
    "Apply",
    "Attention",
    "BitCast",
    "Branch",
    "CentredConvolution",
    "Contraction",
    "Convolution",
    "Count",
    "CountedGather",
    "CumulativeSum",
    "Custom",
    "EpilogueGroup",
    "Expression",
    "Fill",
    "Forest",
    "Gather",
    "GatherElements",
    "GridSample",
    "Group",
    "IndirectStorage",
    "IntegerConvolution",
    "LinearAttention",
    "Loop",
    "NonMaxSuppression",
    "NonZero",
    "PolyphaseFilter",
    "Pool",
    "RandomStream",
    "Recurrence",
    "Reduce",
    "Repeat",
    "Resample",
    "RoiAlign",
    "Scatter",
    "Stage",
    "Storage",
    "TapTable",
    "TopK",
    "Unique",
    "View",
    "Window",
]
