"""The real engine and the real executor in a world where time, chance and every fault come from one number.

python -m tests.simulation --seed 1234 --trace     one seed, with what happened in it
make simulate SEEDS=10000                          many
"""
