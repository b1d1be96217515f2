"""What happens: events, actors, the loop driver. Never sees a model's maths and never imports torch."""
