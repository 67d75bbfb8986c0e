"""What papers print: the ledger of numbers read from them, each with its page, figure and reading error."""
