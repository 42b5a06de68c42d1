"""From the arrays of users, on the host or on a device, to what the core can read and write."""
