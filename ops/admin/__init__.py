"""`engine-admin`: what operators do with jobs and stores. A module a noun.

Every command takes --json. Exit codes: 0 fine, 1 a problem or a difference was found, 2 it could not be asked for.
"""

from ops.admin.main import main as main
