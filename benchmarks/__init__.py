"""Measures the scorer beside its peers: same weights, same token ids, one alternating run."""
