"""Plain values between ranks, and arrays of which ranks have different numbers of rows."""
