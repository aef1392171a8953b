"""From documents to rows, in NumPy alone: order, packing, mixture, and the gather that fills a batch."""
