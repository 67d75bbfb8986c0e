"""Numbers printed in papers: a ledger of each with its page, figure and reading error."""
