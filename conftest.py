"""Which modules of the packages need a library that is not here: doctests cannot import those."""

from __future__ import annotations

from importlib.util import find_spec

#: adapters, and the library that each is for; `make test-adapters` runs them in an environment of their own
ADAPTERS = {"fastai": "fastai", "tsai": "tsai", "lightning": "lightning"}
collect_ignore = [f"chunkstore/{name}.py" for name, library in ADAPTERS.items() if find_spec(library) is None]
