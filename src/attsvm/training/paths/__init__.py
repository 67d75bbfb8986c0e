"""Regularisation paths: minimisers of the risk over growing balls."""
