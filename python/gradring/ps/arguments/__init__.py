"""What tables and their calls are given, checked, and as the core takes it; nothing is sent."""
