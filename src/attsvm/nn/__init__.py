"""The attention layer, prediction heads and losses, in torch."""
