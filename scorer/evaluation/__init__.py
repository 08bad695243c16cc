"""How good rankings and answers are on sets whose answers are known."""
