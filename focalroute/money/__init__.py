"""Prices, costs, budgets and pacing."""
