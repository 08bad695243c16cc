"""How far scores are to be believed: fitted, kept in files, applied."""
