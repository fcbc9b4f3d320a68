"""The tests. A package, so that they share `tests.hierarchies` and `tests.reference`."""
