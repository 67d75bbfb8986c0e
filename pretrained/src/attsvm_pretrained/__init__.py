"""Heads of Hugging Face models as attention SVMs; `attsvm.pretrained` has the public names."""
