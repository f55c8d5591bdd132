"""Entry point of ``python -m dali_compat``."""

import sys

from dali_compat.cli import main

if __name__ == "__main__":
    sys.exit(main())
