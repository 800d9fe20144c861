"""Typed shapes of everything that crosses the operator's edge: the API, its CRDs, the instance catalogue."""
