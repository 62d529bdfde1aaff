"""The report of an experiment: one page that needs nothing else, and its figures as pictures."""
