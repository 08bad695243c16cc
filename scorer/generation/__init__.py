"""Short outputs: a few tokens, several branches of one prompt, whole or as they come."""
