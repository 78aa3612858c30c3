"""Owns ``python -m dex_embedded_engine``: the same as the command ``dex-embedded-engine``."""

import sys

from dex_embedded_engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
