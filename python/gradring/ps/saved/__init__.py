"""Tables beside their servers: checkpoints and their files, exports, and whole tables as arrays."""
