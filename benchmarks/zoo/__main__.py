"""Write models into a folder.

python -m benchmarks.zoo timed --out DIR                     what benchmarks.compare times: 5 GB
python -m benchmarks.zoo timed --out DIR bert resnet50       these
python -m benchmarks.zoo timed --out DIR --shared FOLDER     trained models of a folder, or of those the ones named
python -m benchmarks.zoo quantized --floats DIR --out DIR2    the same, quantized
python -m benchmarks.zoo exported --out DIR --small          what benchmarks.optimizer counts, a few MB per file
python -m benchmarks.zoo exported --list
"""

from __future__ import annotations

import argparse
import os

from benchmarks.zoo import configs, timed, timed_quantized


def main() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    timed.add_arguments(kinds.add_parser("timed", description=timed.__doc__))
    configs.add_arguments(kinds.add_parser("configs", description=configs.__doc__))
    timed_quantized.add_arguments(kinds.add_parser("quantized", description=timed_quantized.__doc__))
    exported = kinds.add_parser("exported")
    exported.add_argument("--out", type=timed.Path, default=timed.Path("zoo"))
    exported.add_argument("--only", nargs="+", default=[""], help="build the models whose name holds one of these")
    exported.add_argument("--small", action="store_true", help="the same layers, narrow")
    exported.add_argument("--list", action="store_true", help="print the names and stop")
    args = parser.parse_args()
    if args.kind == "timed":
        timed.run(args, parser)
        return
    if args.kind == "quantized":
        timed_quantized.run(args, parser)
        return
    if args.kind == "configs":
        configs.run(args, parser)
        return
    from benchmarks.zoo.exported import run

    run(args)


if __name__ == "__main__":
    main()
