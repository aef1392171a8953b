"""Owners of arrays and devices, behind one door."""
