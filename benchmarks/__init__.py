"""Programs that measure Sardonyx; README.md says which question each answers."""
