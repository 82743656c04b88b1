"""``python -m sardonyx``: the command line."""

import sys

from sardonyx.cli import main

sys.exit(main())
