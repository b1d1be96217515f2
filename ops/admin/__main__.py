"""`python -m ops.admin`."""

from ops.admin.main import main

main()
