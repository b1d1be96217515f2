"""What a model is: cards, loops, wire types. No runtime; torch only inside step bodies, loaded lazily."""
