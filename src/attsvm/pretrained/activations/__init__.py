"""What a forward pass of a model does, recorded and read: attention calls, operations, the maps behind them."""
