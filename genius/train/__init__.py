"""Training: data, losses, the three stages, and the loop they share."""
