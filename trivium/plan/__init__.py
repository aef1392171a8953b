"""Config + what is on disk -> Plan: every unit resolved, every problem named."""
