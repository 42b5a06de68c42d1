"""The parameters of servers as a worker has them: whole arrays, tables, and rows of tables."""
