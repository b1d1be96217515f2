"""The fault matrix: what happens to an idle and a loaded system when one thing goes wrong in one place.

`python -m tests.faults` runs every cell with real processes and prints what was seen. Idle means that nothing else is
being worked on: a signal meets processes without work, a fault in a step meets a job that is alone.
"""
