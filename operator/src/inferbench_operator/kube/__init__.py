"""The shell around the core: watches into a cache, gathers facts, carries decisions out, and counts what it does."""
