"""`python -m hace` is `hace`."""

import sys

from hace.cli import main

if __name__ == "__main__":
    sys.exit(main())
