"""Benchmarks: what is compared runs side by side in one run; ratios and medians are printed, nothing is asserted."""
