"""What is known of other people's models: wrappers, heads, output projections, residual stream."""
