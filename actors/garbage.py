"""Pauses that Python's search for garbage makes, kept short.

A full search goes through every object of the process: tens of milliseconds with Ray's modules
loaded, during which nobody is answered. What is there when a process begins its work stays anyway.
"""

from __future__ import annotations

import gc


def spare_what_is_loaded() -> None:
    """Leave everything there is now out of later searches. Complexity: O(objects), once."""
    gc.collect()
    gc.freeze()
