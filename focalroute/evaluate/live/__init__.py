"""Evaluation on live pools: chains in which every endpoint is shown the answer before, and DER trained for them.

`queries` reads what is asked and plays an ensemble on it, `environment` makes the calls that DER learns from,
`strategies` plays everything that is compared, `report` scores it and is what the command line calls.
"""
