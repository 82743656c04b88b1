"""The facts of a report, from sessions and their runs, as the records of ``report.records``."""
