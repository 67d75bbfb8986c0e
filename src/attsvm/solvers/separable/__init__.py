"""Methods for problems whose queries are orthogonal and whose tokens are orthonormal."""
