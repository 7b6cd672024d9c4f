"""The main program of a torchloader cluster, which ends with its head, or at Ctrl-C.

dragon -m torchloader.service.begin FOLDER
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

try:
    # In here, since it takes seconds where PyTorch is imported with it.
    from torchloader.service.head import main

    if __name__ == "__main__":
        sys.exit(main(Path(sys.argv[1])))
except KeyboardInterrupt:
    sys.exit(128 + signal.SIGINT)
