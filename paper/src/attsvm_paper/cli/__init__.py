"""The commands `attsvm reproduce` and `attsvm list`, which attsvm finds by their entry points."""
