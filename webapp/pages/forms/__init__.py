"""Forms of the pages: they check shape and words; what may happen is the services' affair."""
