"""Kopf's side of the operator: which objects are watched, and the settings of the watches."""
