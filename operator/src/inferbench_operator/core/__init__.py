"""The pure core: from facts and a time to a decision. No clock, no I/O, no Kopf, no client."""
