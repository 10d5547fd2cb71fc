"""Makes the one wheel of a build folder, reads wheels and builds back, and compares two of them."""
