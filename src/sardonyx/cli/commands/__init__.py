"""One file per command; ``cli/table.py`` lists them and says what such a file holds."""
