"""Around compiled graphs when they run: inputs, outputs and saved values."""
