"""Newton's method in W for squared hinges over one-hot tokens: classes or words, and many entries of W."""
