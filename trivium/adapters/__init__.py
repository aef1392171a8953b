"""The stages of a config in other people's loops: what each tool calls a loader, a schedule and a step."""
