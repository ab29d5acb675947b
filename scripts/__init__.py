"""Programs that build, check and document the project; nothing here runs in production."""
