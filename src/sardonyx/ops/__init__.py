"""What each operator means."""
