"""How numbers are computed: to the same bits each time, or in eight bits where the device has them."""
