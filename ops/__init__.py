"""The composition root and the commands. Nothing imports it."""
