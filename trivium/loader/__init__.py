"""Plan + rank -> batches; and every token's address, both ways."""
