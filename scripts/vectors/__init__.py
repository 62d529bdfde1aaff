"""Parts of `scripts/make_vectors.py`."""
