"""Engines, workers, a database and a disk as they are, each broken at random for a while; then a look at the log.

`python -m tests.chaos --seed N` draws what goes wrong and when. The same seed draws the same again; what comes of it
is up to the machine.
"""
