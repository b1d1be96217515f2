"""The only file of the workers that may read a clock."""

import time

monotonic = time.monotonic
perf_counter = time.perf_counter
