"""What is told about a placement, all of it derived from its description: in words and numbers, and as a diagram."""
