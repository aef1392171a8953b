"""A trained model used: opened, sampled, talked to, scored, exported."""
