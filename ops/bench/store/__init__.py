"""The store beside its peers: the same writes, by turns, on the same disk, in one run."""
