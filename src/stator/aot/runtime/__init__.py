"""What surrounds compiled graphs when they run: inputs, outputs, saved values."""
