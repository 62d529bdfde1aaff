"""Goodput under overload: answers within their deadlines, of this server and of others."""
