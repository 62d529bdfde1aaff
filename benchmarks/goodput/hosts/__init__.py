"""Servers of others with one LiteRT network, each as its own documentation writes it.

Each file is run as a script by the Python that has that server: `HOST PORT MODEL`. It imports
nothing of this project.
"""
