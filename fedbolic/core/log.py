"""The logger of all packages."""

import logging

logger = logging.getLogger("fedbolic")
