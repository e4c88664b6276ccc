"""`python -m actors.java ARGUMENTS`, which becomes Java with these arguments."""

import os
import sys

from actors.java import NotStarted, become

try:
    become(sys.argv[1:], os.environ)
except NotStarted as error:
    sys.exit(f"java: {error}")
