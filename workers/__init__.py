"""One process a rank: a link to the engine, resident models and latents, step bodies."""
