"""The runner's command line with a back end that needs no device: run as a program by the tests of its process.

The first argument names a function of `fake_backends`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from inferbench_runner.__main__ import main
from test_runner import fake_backends

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], getattr(fake_backends, sys.argv[1])))
