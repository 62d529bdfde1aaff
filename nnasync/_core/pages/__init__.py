"""Pages of results, each one HTML file that needs no other: charts, tables, style and script.

They are for any screen, dark or light, and for paper, and show with their script switched off what
they show with it.
"""
