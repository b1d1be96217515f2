"""The HTTP edge: parse, ask the engine, answer."""
