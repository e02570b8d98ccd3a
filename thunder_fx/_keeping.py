"""A list in which compilers stay alive while a test runs, though the test drops them. The pytest plugin's alone.

Standard library only: the plugin is loaded in runs that never import torch.
"""

from __future__ import annotations

from typing import Any

# None: nothing is kept. A test that fails after `thunderfx(fn)(x)` has dropped what its reproducer is made of.
kept: list[Any] | None = None
