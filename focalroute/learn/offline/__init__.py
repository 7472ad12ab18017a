"""Trains policies on recorded answers and on synthetic pools."""
