"""What runs inside a rank and nowhere else."""
