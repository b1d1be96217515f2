"""What runs next, with whom, where, and whether it fits: pure functions of what is ready and what the workers have."""
