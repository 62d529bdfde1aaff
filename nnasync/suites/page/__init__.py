"""The page of a suite's result: one HTML file that needs no other."""

from nnasync.suites.page.written import write_page

__all__ = ["write_page"]
