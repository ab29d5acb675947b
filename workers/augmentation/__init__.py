"""Makes new samples: methods by name, a gate behind them, and the Dramatiq actors that grind batch after batch."""
