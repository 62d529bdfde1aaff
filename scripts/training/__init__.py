"""Data generators, training and export of the demo's networks."""
