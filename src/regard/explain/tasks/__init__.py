"""What is explained: a model, its inputs, a target, and ways to remove positions."""
