"""What the tests on a real node have in common."""
