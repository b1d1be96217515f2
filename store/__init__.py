"""What is on disk. Knows order and conflict, not meaning."""
