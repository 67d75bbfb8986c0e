"""Margins of heads split over the residual stream."""
