"""The pages people see: server-rendered HTML."""
