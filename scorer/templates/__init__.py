"""Templates: versioned data that says what text surrounds a query and a document."""
