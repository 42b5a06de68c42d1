"""GEO: local steps on a replica, and exchanges of what they changed."""
