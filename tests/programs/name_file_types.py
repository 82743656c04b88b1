"""Lets magika name the type of four small files.

The model takes variances as differences of squares: its scores have three correct digits in f32 on any engine.
"""

from magika import Magika

SAMPLES = (
    b"def f(x):\n    return x + 1\n\n\nclass A:\n    pass\n" * 3,
    b"# Title\n\nSome *markdown* with a [link](http://example.org)\n\n- one\n- two\n" * 4,
    b'{"a": [1, 2, 3], "b": {"c": null}}' * 4,
    b'#include <stdio.h>\nint main(void) { printf("hi"); return 0; }\n' * 3,
)
magika = Magika()
for sample in SAMPLES:
    result = magika.identify_bytes(sample)
    print(result.output.label, round(result.score, 3))
