"""Bytes in and out: the only way to read files from outside, and to write files whole or not at all."""
