"""What the operator's tests share: builders of facts, and a small simulated cluster on virtual time."""
