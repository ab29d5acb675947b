"""The domain: what exists, what may happen to it, what did happen."""
