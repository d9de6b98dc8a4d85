"""What all tests have in common: processes that start soon, and an order in which two workers end together."""

import os
import shutil

# Daemons and engines are processes of their own, hundreds of them: what they import is compiled once for all.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"  # without a GPU; Triton asks for it when it is first imported
