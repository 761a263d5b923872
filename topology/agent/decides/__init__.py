"""What follows from the answers: pure functions and books, on a clock that is passed in."""
