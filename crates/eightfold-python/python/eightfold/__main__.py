"""``python -m eightfold``: the ``eightfold`` command, which comes with the wheel."""

import os
import sys
from pathlib import Path


def main() -> int:
    command = Path(__file__).parent / "bin" / "eightfold"
    if not command.exists():
        print(
            "eightfold: this package was built without the command; build it with crates/eightfold-python/ci.sh, or ask "
            "eightfold.doctor() from Python",
            file=sys.stderr,
        )
        return 2
    os.execv(command, [str(command), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
