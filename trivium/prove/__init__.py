"""Three gates that an engine passes on a machine: its bits repeat, ranks change nothing, a killed run ends alike."""
