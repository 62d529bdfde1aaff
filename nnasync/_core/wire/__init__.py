"""What a client and a service in another process say to each other, and how it travels.

Messages and errors (`messages`), frames with file descriptors over a socket (`connection`), models
and memory as they are handed over (`model_transfer`), what a service recorded for a trace
(`span_forms`), and where the two sides of a conversation run (`placement`). Requests travel in
`burst` messages over a `message_queue`. The client is `drivers.service`, the other side `service`.
"""

from __future__ import annotations

__all__: list[str] = []
