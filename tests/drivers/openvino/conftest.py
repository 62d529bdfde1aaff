"""Without the package, the tests of its driver have nothing to test."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("openvino") is None:
    pytest.skip("needs openvino: pip install 'nnasync[openvino]'", allow_module_level=True)
