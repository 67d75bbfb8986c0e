"""Recording and reading of a model's forward pass: attention calls, operations, the maps behind them."""
