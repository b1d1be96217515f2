"""`engine-admin`: what operators do with jobs and stores. A module a noun.

Every command takes --json. docs/how-to/operate.md says what the exit codes mean.
"""

from ops.admin.main import main as main
