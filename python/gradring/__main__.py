"""`python -m gradring` is the `gradring` command."""

import sys

from gradring.cli import main

sys.exit(main())
