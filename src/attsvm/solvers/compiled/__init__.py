"""Problems that one compiled call takes from tokens to a certified answer."""
