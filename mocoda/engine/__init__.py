"""What makes everything fast and safe, and knows nothing of the method."""
