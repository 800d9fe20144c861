"""What a kubelet says of pods, situation by situation: one table, for the node agent and for a real node."""
