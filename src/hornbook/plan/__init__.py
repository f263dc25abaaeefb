"""What a training will need, before it runs and without torch: memory, FLOPs, bytes sent, time and price."""
