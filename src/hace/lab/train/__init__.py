"""End-to-end training of image models."""
