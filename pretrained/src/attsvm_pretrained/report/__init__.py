"""The pages of `attsvm inspect`."""
