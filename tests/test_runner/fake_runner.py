"""The runner's command line with a back end that needs no device: run as a program by the tests of its process."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from inferbench_runner.__main__ import main
from test_runner.builders import sleepy_backend

if __name__ == "__main__":
    sys.exit(main(open_backend=sleepy_backend().open))
