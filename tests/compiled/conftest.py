"""The compiled leg needs triton, but no GPU; the interpreter would take the place of the compiler."""

import importlib.util
import os

if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
    collect_ignore_glob = ["test_*.py"]
