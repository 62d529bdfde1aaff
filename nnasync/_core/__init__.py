"""Everything that is not public: nothing here is promised to programs outside this repository.

The public modules beside this folder (`nnasync/__init__.py` lists them) are written with what is
here, and hand out what a program may use. The order of the layers is one for both:
`tests/test_layers.py` holds it, and knows a module by its name, `clock`, whether it is public or in
this folder. `tests/test_boundary.py` holds that examples, documents and drivers of others import
public modules only.
"""

from __future__ import annotations

__all__: list[str] = []
