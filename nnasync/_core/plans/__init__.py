"""Plans that wrap plans: what varies while a network is in use is a plan, too.

`composite` runs the plans of parts in order, `branching` those of the bodies of an IF or WHILE;
`guarded` repeats a failed run on the reference, `staged` changes to a better plan between two runs,
`adaptive` chooses between two forms; `dense_copies` copies what an engine cannot take as it is.
Each costs the call of one more method. `arena` says where the arrays of a plan lie.
"""

from __future__ import annotations

__all__: list[str] = []
