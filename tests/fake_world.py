"""The fake help desk, for tests: see `project_modules/fake_world.py`, which the projects of tests import."""

import sys

from tests.project_modules import FOLDER

if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

from fake_world import *  # noqa: F403
